"""Callables of the user's own code, named in a suite as ``package.module:callable``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from distbench.core.errors import did_you_mean


def top_modules(names: Iterable[str | None]) -> tuple[str, ...]:
    """Top-level modules of the callables *names*; None: none is named."""
    return tuple(dict.fromkeys(re.split(r"[.:]", name)[0] for name in names if name is not None))


def callable_problem(name: str) -> str | None:
    """Problem with ``package.module:callable``, as far as files show it; None if there is none."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        return "must be of the form package.module:callable"
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and PathFinder.find_spec(top, [str(Path.cwd())]):
        return f"{top} in {Path.cwd()} has the name of a module of Python's standard library; rename it"
    if not _module_exists(module):
        return f"no module {module} in {Path.cwd()} or on Python's path (PYTHONPATH adds folders)"
    return None


def _module_exists(name: str) -> bool:
    """Look for the file of a module; importlib's own find_spec would import its parent packages."""
    top, *rest = name.split(".")
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded else PathFinder.find_spec(top, [str(Path.cwd())])
    spec = spec or (None if loaded else importlib.util.find_spec(top))
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec is not None


def _import_package(name: str) -> None:
    """Import *name* from the working folder if it is there, although that is the last folder of the path.

    It was named by the user; what it imports itself is found by the path.
    """
    spec = None if name in sys.modules else PathFinder.find_spec(name, [str(Path.cwd())])
    if spec is None or spec.loader is None:
        return
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@functools.cache
def import_callable(option: str, name: str) -> Callable[..., Any]:
    """Import what ``package.module:callable`` names.

    Raises:
        ValueError: it can't be imported, or is not callable.
    """
    module_name, _, path = name.partition(":")
    try:
        _import_package(module_name.partition(".")[0])
        named: Any = importlib.import_module(module_name)
    except Exception as error:
        # user code runs on import: whatever it raises is reported with the option that named it
        raise ValueError(f"{option} = {name!r} can't be imported: {type(error).__name__}: {error}") from error
    for attribute in path.split("."):
        if not hasattr(named, attribute):
            raise ValueError(f"{option} = {name!r}: {_missing_attribute_text(named, attribute, module_name)}")
        named = getattr(named, attribute)
    if not callable(named):
        raise ValueError(f"{option} = {name!r} is a {type(named).__name__}; it must be callable")
    return named  # type: ignore[no-any-return]


def _missing_attribute_text(named: Any, attribute: str, module: str) -> str:
    """Message that *named*, from *module*, has no *attribute*; suggests those that exist."""
    where = getattr(named, "__file__", None) or getattr(named, "__name__", repr(named))
    own = [
        each
        for each, value in getattr(named, "__dict__", {}).items()
        if callable(value) and getattr(value, "__module__", None) == module
    ]
    return f"{where} has no {attribute}" + (f"; {did_you_mean(attribute, own)}" if own else "")
