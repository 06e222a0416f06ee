"""Temporary folders; making one also removes those that killed processes left behind."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".distbench-tmp-"
_NAME = re.compile(re.escape(_PREFIX) + "[a-z0-9_]{8}")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder that is removed at the end."""
    for entry in os.scandir(tempfile.gettempdir()):
        if _NAME.fullmatch(entry.name):
            _remove_if_abandoned(Path(entry.path))
    folder, lock = _locked()
    try:
        yield folder.resolve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    """New folder and the lock on it, which the kernel releases whatever ends this process."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # until it is locked, another process may consider it abandoned and remove it
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    # a folder in use, or not a folder, or somebody else's
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        finally:
            os.close(lock)
