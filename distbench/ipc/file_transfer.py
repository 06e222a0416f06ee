"""File transfer over a channel in chunks; only files with the right SHA-256 digest are stored."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from distbench.ipc.messages import FileChunk
from distbench.system.files import atomic_path

# small enough for a heartbeat between two chunks, also on a slow network
_CHUNK_BYTES = 256 << 10


class TransferError(Exception):
    """A received file differs from the sent one, or does not belong here."""


def file_chunks(file: Path, name: str) -> Iterator[FileChunk]:
    """Yield *file* in chunks, up to its current size; the receiver calls it *name*.

    Raises:
        OSError: it can't be read.
    """
    made, at = hashlib.sha256(), 0
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        while data := stream.read(min(_CHUNK_BYTES, size - at)):
            made.update(data)
            yield FileChunk(name, at, data=data)
            at += len(data)
    yield FileChunk(name, at, made.hexdigest())


def cached_sha256(file: Path) -> str:
    """SHA-256 of *file* in hex digits; an unchanged file is read only once.

    Raises:
        OSError: it can't be read.
    """
    status = file.stat()
    return _sha256(file, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.cache
def _sha256(file: Path, *_status: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass
class _PartialFile:
    stream: BinaryIO
    rename: ExitStack
    sha256: Any = field(default_factory=hashlib.sha256)


class FileReceiver:
    """Receiver of files in chunks; each file appears in a folder once it is complete."""

    def __init__(self, folder: Path, is_expected: Callable[[str], bool] = lambda _: True) -> None:
        """Receive files into *folder*; names for which *is_expected* is false are rejected."""
        self._folder, self._is_expected = folder, is_expected
        self._partial: dict[str, _PartialFile] = {}

    def receive(self, chunk: FileChunk) -> None:
        """Store *chunk*.

        Raises:
            TransferError: its file does not belong in the folder, or differs from the sent one.
            OSError: it can't be written.
        """
        name = chunk.name
        if chunk.offset == 0:
            # an abandoned file is sent again from its beginning
            self._drop(name)
        try:
            if name not in self._partial:
                self._partial[name] = self._open(name)
            file = self._partial[name]
            file.stream.write(chunk.data)
            file.sha256.update(chunk.data)
            if chunk.digest:
                self._finish(name, chunk.digest)
        except OSError:
            self._drop(name)
            raise

    def close(self) -> None:
        """Drop incomplete files."""
        for name in list(self._partial):
            self._drop(name)

    def _open(self, name: str) -> _PartialFile:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
            raise TransferError(f"received {name!r}, which is not a file in the folder of the run")
        if not self._is_expected(name):
            raise TransferError(f"received {name!r}, which is not one of the files that its ranks write")
        place = self._folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        rename = ExitStack()
        aside = rename.enter_context(atomic_path(place))
        return _PartialFile(rename.enter_context(aside.open("wb")), rename)

    def _finish(self, name: str, digest: str) -> None:
        file = self._partial.pop(name)
        with file.rename:
            if file.sha256.hexdigest() != digest:
                raise TransferError(f"received {name} with a different SHA-256 digest than it was sent with")

    def _drop(self, name: str) -> None:
        if file := self._partial.pop(name, None):
            with suppress(TransferError, OSError), file.rename:
                raise TransferError("dropped")
