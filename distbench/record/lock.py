"""Lock a run's folder: one process at a time runs trials in it.

That process holds a lock (flock) on a file in the folder. The kernel releases it when the process ends,
however it ends, so no lock is ever stale. No child inherits it: Python opens files close-on-exec, and
launchers start other programs. The file names process and host for messages to refused processes, and is
emptied at the end; after a kill it keeps both until the next session.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from distbench.core.errors import RecordError, UsageError
from distbench.core.serialization import decode

LOCK_FILE = ".owner"
# a folder may come from anybody: no link is followed, and no pipe waited for
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES, _PAUSE_S = 5, 0.02
_MAX_BYTES = 1024
_NAME = re.compile(r"[\w.:-]{1,255}")
# files that this process has locked: finding that out by trying would take as long as waiting for others
_held_locks: set[tuple[int, int]] = set()


@dataclass(frozen=True)
class LockHolder:
    """A process that runs trials in a folder."""

    process: int
    host: str
    since: str
    """UTC, ISO 8601."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}"


@contextmanager
def lock_folder(folder: Path, now: str) -> Iterator[LockHolder | None]:
    """Lock *folder* while the body runs; yield the previous holder if it was killed.

    *now* is recorded as the start. On a file system without locks (Lustre without ``flock``, some of FUSE) no
    process is refused.

    Raises:
        UsageError: another process holds the lock, or its file ``.owner`` is not a regular one.
        OSError: the folder is not writable, or its disk is full.
    """
    file = folder / LOCK_FILE
    descriptor = _open(file, os.O_RDWR | os.O_CREAT)
    try:
        if _is_held_elsewhere(descriptor, fcntl.LOCK_EX):
            raise UsageError(_locked_text(folder, _read_holder(descriptor)))
        killed = _read_holder(descriptor)
        _write_holder(descriptor, json.dumps(asdict(LockHolder(os.getpid(), socket.gethostname(), now))))
        _held_locks.add(_identity(descriptor))
        try:
            yield killed
        finally:
            _held_locks.discard(_identity(descriptor))
            _write_holder(descriptor, "")
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """True if a process runs trials in *folder*, or if that is unknown."""
    try:
        descriptor = _open(folder / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except (OSError, UsageError):
        return True
    try:
        return _identity(descriptor) in _held_locks or _is_held_elsewhere(
            descriptor, fcntl.LOCK_SH, unknown=True
        )
    finally:
        os.close(descriptor)


def _open(file: Path, flags: int) -> int:
    try:
        descriptor = os.open(file, flags | _OPEN_FLAGS, 0o644)
    except OSError as error:
        if file.is_symlink():
            raise UsageError(
                f"{file}: is a symbolic link, which distbench does not create; remove it"
            ) from error
        raise
    found = os.fstat(descriptor)
    # a file with a second name may be any file of the user's
    if not stat.S_ISREG(found.st_mode) or (flags & os.O_RDWR and found.st_nlink > 1):
        os.close(descriptor)
        raise UsageError(
            f"{file}: not a regular file with a single name, so distbench did not create it; remove it"
        )
    return descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _is_held_elsewhere(descriptor: int, operation: int, *, unknown: bool = False) -> bool:
    """True if another process prevents *operation*; *unknown* where there are no locks."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            # a process that only checks the lock holds it for an instant, too
            time.sleep(_PAUSE_S)
        except OSError:
            return unknown
        else:
            return False
    return True


def _read_holder(descriptor: int) -> LockHolder | None:
    """Read the holder from the file; None if it is empty, or not as distbench writes it."""
    try:
        content = os.pread(descriptor, _MAX_BYTES, 0)
        holder = decode(LockHolder, json.loads(content), LOCK_FILE)
    except (OSError, ValueError, RecursionError, RecordError):
        return None
    is_sound = holder.process > 0 and _NAME.fullmatch(holder.host) and _NAME.fullmatch(holder.since)
    return holder if is_sound else None


def _write_holder(descriptor: int, text: str) -> None:
    # the entry is for people only: a full disk must not end a run here
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _locked_text(folder: Path, holder: LockHolder | None) -> str:
    if holder is None:
        return f"{folder}: in use by another process; wait for it, or stop it"
    return f"{folder}: in use by {holder}; wait for it, or stop it (kill {holder.process}, on {holder.host})"
