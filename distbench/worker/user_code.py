"""Locate exceptions in the user's code, and hash its files."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import stat
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distbench.core import registry
from distbench.core.case import PluginChoice

_LIBRARIES = ("distbench", "torch", "deepspeed", "transformers")
"""Packages that may lie beside a user's model, as a checkout or on Python's path."""
_INSTALL_FOLDERS = ("site-packages", "dist-packages")
_INSTALLED = tuple(
    f"{folder}/"
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)
"""Prefixes of the files of Python and of distbench."""


@dataclass(frozen=True)
class _Root:
    """Location of the files of a user's module."""

    folder: Path
    base: Path
    """Folder that its name is relative to."""


def user_line(error: BaseException, workload: PluginChoice, data: PluginChoice | None = None) -> str:
    """Innermost ``file.py:line`` of user code of *workload* or *data* in *error*; empty: none."""
    if line := next((known for each in _exception_chain(error) if (known := _line_in_worker(each))), ""):
        return line
    try:
        roots = _user_roots(workload, data)
    except Exception:
        # a plug-in that can't be created has no module to search, and may be the cause of the error
        return ""
    places = (place for each in _exception_chain(error) for place in _frames(each))
    return next(
        (f"{own}:{number}" for file, number in places if (own := _user_path(file.resolve(), roots))), ""
    )


def _line_in_worker(error: BaseException) -> str:
    """Line of the user's code in the worker of a loader that *error* reports; empty: it is of no worker."""
    return getattr(error, "user_line", "")


def message_with_line(error: Exception, workload: PluginChoice, data: PluginChoice | None = None) -> str:
    """Message of *error* with the line of the user's code that it passed through."""
    line = user_line(error, workload, data)
    return f"{error} ({line})" if line else str(error)


def user_code_digest(workload: PluginChoice, data: PluginChoice | None = None) -> str:
    """Digest of the imported files of user code of *workload* and *data*; an edit of one changes it."""
    roots = _user_roots(workload, data)
    folders = tuple(str(root.folder) for root in roots)
    near = {Path(file) for file in _imported_files() if file.startswith(folders)} if roots else set()
    files = sorted(file for file in near if _user_path(file, roots))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def imported_code_digest() -> str:
    """Digest of the files of all imported modules, without Python's, installed ones and distbench's.

    By the names of the modules, so it is the same in a copy of a repository. Empty: there are none.
    """
    return _imported_code_digest(len(sys.modules))


@functools.cache
def _imported_code_digest(_modules: int) -> str:
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    found = {name: Path(file) for name, file in files.items() if file and not _is_installed(file)}
    # modules that torch makes give names of files that don't exist
    kept = {name: file.read_bytes() for name, file in found.items() if file.is_file()}
    named = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in kept.items()]
    return hashlib.sha256("\n".join(sorted(named)).encode()).hexdigest() if named else ""


def _is_installed(file: str) -> bool:
    """True if *file* is one of Python's, of an installed package, or of distbench."""
    return file.startswith(_INSTALLED) or any(f"/{folder}/" in file for folder in _INSTALL_FOLDERS)


def _imported_files() -> Iterator[str]:
    """Yield the files of all imported modules, with symbolic links resolved.

    There are thousands, in a few hundred folders; the path of each folder is resolved once.
    """
    resolved = functools.cache(lambda folder: str(Path(folder).resolve()))
    names = {getattr(module, "__file__", None) for module in sys.modules.values()}
    for name in filter(None, names):
        folder, _, file = name.rpartition("/")
        place = f"{resolved(folder)}/{file}"
        with suppress(OSError):
            yield str(Path(place).resolve()) if stat.S_ISLNK(os.lstat(place).st_mode) else place


def _user_roots(workload: PluginChoice, data: PluginChoice | None) -> list[_Root]:
    modules = registry.create_plugin("workloads", workload).user_modules()
    modules += registry.create_plugin("data", data).user_modules() if data else ()
    return [root for name in modules if (root := _module_root(name))]


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, then the chain of its causes or contexts."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _frames(error: BaseException) -> Iterator[tuple[Path, int]]:
    """Yield file and line of each frame of *error*, the innermost first."""
    if isinstance(error, SyntaxError) and error.filename:
        yield Path(error.filename), error.lineno or 1
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield Path(frame.filename), frame.lineno or 1


def _module_root(name: str) -> _Root | None:
    """Location of the files of the module *name*, even if it could not be imported; None: unknown."""
    spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).resolve()
        return _Root(folder, folder.parent)
    if not spec.origin or not Path(spec.origin).is_file():
        return None
    file = Path(spec.origin).resolve()
    # modules beside it are the user's as well, unless the folder holds installed packages
    return _Root(file if file.parent.name in _INSTALL_FOLDERS else file.parent, file.parent)


def _user_path(file: Path, roots: Iterable[_Root]) -> str:
    """Path of *file* (resolved) for a message; empty: it is not the user's."""
    for root in roots:
        if file.is_relative_to(root.folder) and not {*file.relative_to(root.folder).parts} & {
            *_INSTALL_FOLDERS
        }:
            # code that torch.compile makes has no file
            is_own = file.is_file() and not _is_library_file(file)
            return str(file.relative_to(root.base)) if is_own else ""
    return ""


def _is_library_file(file: Path) -> bool:
    loaded = (sys.modules.get(name) for name in _LIBRARIES)
    folders = [Path(module.__file__).parent for module in loaded if module and module.__file__]
    return any(
        file.is_relative_to(folder.resolve()) for folder in [*folders, Path(sysconfig.get_path("stdlib"))]
    )
