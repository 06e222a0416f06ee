"""C++ libraries in the build cache: tested before a rank loads them, and rebuilt if damaged.

A power cut or a full disk can leave a library that ends every process that loads it, without a message. torch
builds DeepSpeed's ops in place, so no rename protects them: a child process tries to load a library first.
"""

import ctypes
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from distbench.system.files import exclusive_lock
from distbench.system.processes import exit_text


class NativeLibraryError(Exception):
    """A library can't be built for lack of something on this machine, or can't be loaded after its build."""


def ensure_built(library: Path, build: Callable[[], object], outputs: Path) -> list[str]:
    """Call *build* to make *library*, unless it exists and can be loaded; return notes for the user.

    Libraries that it links to (torch) must already be imported.

    Args:
        outputs: Everything that *build* makes, a file or a folder: a damaged library is removed with it.

    Raises:
        NativeLibraryError: the new library can't be loaded either.
        OSError: the cache can't be written.
    """
    if library.exists() and not load_error(library):
        return []
    with exclusive_lock(outputs):
        # another process may have built it in the meantime
        why = load_error(library) if library.exists() else None
        if why:
            _remove(outputs)
        if not library.exists():
            build()
            if still := load_error(library):
                raise NativeLibraryError(f"can't load the newly built {library}: {still}")
            _sync(outputs)
    return [f"rebuilt {library}, because the cached copy was damaged ({why})"] if why else []


def load_error(library: Path) -> str | None:
    """Reason why *library* can't be loaded, tried in a child process; None if it can."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _load(library, writing)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        reason = pipe.read()
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        reason = reason or f"a process that loads it {exit_text(code)}"
    # the linker's messages begin with the name
    return reason.removeprefix(f"{library}: ") or None


def _load(library: Path, pipe: int) -> NoReturn:
    code = 1
    try:
        # a crash is a valid answer here and needs no core dump
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(str(library))
        code = 0
    except OSError as error:
        os.write(pipe, str(error).encode())
    finally:
        # never unwind into the copy of the parent's code
        os._exit(code)


def _remove(outputs: Path) -> None:
    if outputs.is_dir():
        shutil.rmtree(outputs)
    else:
        outputs.unlink()


def _sync(outputs: Path) -> None:
    """Flush *outputs* to disk, so that a power cut leaves them as they are."""
    for path in (*outputs.rglob("*"), outputs, outputs.parent):
        # a process that loads the finished library has torch's lock file in here for a moment
        with suppress(FileNotFoundError):
            _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
