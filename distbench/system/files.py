"""File access that is safe in anybody's folder: names, bounded reads of regular files, atomic writes.

A read opens no FIFO, device or link, and takes no more than its limit. A write follows no link either, and a
kill or a full disk leaves the old file or the new one.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from distbench.core.errors import InfrastructureError

_CHUNK = 1 << 20


def read_bounded(file: Path, limit: int, *, follow: bool = False) -> bytes:
    """Content of a regular file of at most *limit* bytes.

    Args:
        follow: Follow a symbolic link: only where the user named *file*.

    Raises:
        OSError: it can't be read, is larger, or is not a regular file; ``strerror`` says which.
    """
    with _open_regular(file, limit, follow=follow) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise _too_large(limit)
    return data


def folders(folder: Path) -> list[Path]:
    """Folders in *folder*, sorted by name; none if it does not exist, or disappears meanwhile."""
    found: list[Path] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if _is_folder(entry)]
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # a link to itself has no target
        return False


def read_range(file: Path, start: int, limit: int) -> bytes:
    """Up to *limit* bytes of a regular file, from *start* on.

    Raises:
        OSError: it can't be read, or is not a regular file.
    """
    with _open_regular(file, sys.maxsize, follow=False) as stream:
        stream.seek(start)
        return stream.read(limit)


def sha256_bounded(file: Path, limit: int) -> str:
    """SHA-256 of a regular file of at most *limit* bytes, in hex digits.

    Raises:
        OSError: as in ``read_bounded``.
    """
    made = hashlib.sha256()
    with _open_regular(file, limit, follow=False) as stream:
        while chunk := stream.read(_CHUNK):
            made.update(chunk)
    return made.hexdigest()


@contextmanager
def _open_regular(file: Path, limit: int, *, follow: bool) -> Iterator[BinaryIO]:
    # without O_NONBLOCK, opening a FIFO that nobody writes to never returns
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(file, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed") from error
        raise
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > limit:
            raise _too_large(limit)
        yield stream


def _too_large(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {limit:,} bytes")


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """Yield a temporary path; at the end its content is flushed to disk and renamed to *file*.

    The path is in a new folder that only this user may enter: nobody can have placed a link there.

    Raises:
        OSError: it could not be written; *file* is as before.
    """
    folder = Path(tempfile.mkdtemp(prefix=f".{file.name[:64]}.", dir=file.parent))
    try:
        aside = folder / "whole"
        yield aside
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_atomic(file: Path, text: str) -> None:
    """Write *text* to a temporary file, flush it to disk and rename it to *file*.

    Raises:
        OSError: it could not be written; *file* is as before.
    """
    # surrogates: names from the command line or a foreign log may contain undecodable bytes
    with atomic_path(file) as aside, aside.open("x", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Exclude other processes from this context for *path*; the lock ends with its process.

    Raises:
        OSError: the folder of *path* can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        # some network file systems have no locks: two processes may then do the same work
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def infrastructure_errors(place: Path) -> Iterator[None]:
    """Turn an OSError into an InfrastructureError that says that *place* can't be written."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"{place}: can't be written: {error.strerror or error}") from error


def slug(name: str) -> str:
    """*name* as a safe file name: ``[a-z0-9._+-]``, at most 64 characters."""
    return re.sub(r"[^a-z0-9._+-]+", "-", name.lower()).strip("-.")[:64] or "unnamed"
