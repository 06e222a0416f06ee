"""Logs of ranks: cut where they grow without end; the part of one that a record keeps."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 64 << 20
"""Bytes from which on a log is cut."""
KEPT_HEAD_BYTES, KEPT_TAIL_BYTES = 1 << 20, 8 << 20
"""Bytes of its begin and of its end that a cut leaves."""
_EXCERPT_BYTES = 4000


class BoundedLogs:
    """Growing logs; each keeps its beginning and its end whenever it exceeds ``MAX_LOG_BYTES`` bytes.

    Who writes one is neither asked nor slowed down: it appends, so that its next line follows what was left.
    What it writes in the microseconds before a cut may be lost.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._omitted = dict.fromkeys(files, 0)

    def trim(self) -> None:
        """Cut those that have passed the limit.

        Raises:
            OSError: one can't be written.
        """
        for file in self._omitted:
            # there is none before its rank has started
            with suppress(FileNotFoundError):
                if file.stat().st_size > MAX_LOG_BYTES:
                    self._trim(file)

    def _trim(self, file: Path) -> None:
        before = self._omitted[file]
        with file.open("r+b") as log:
            descriptor, begin = log.fileno(), log.seek(0, os.SEEK_END) - KEPT_TAIL_BYTES
            self._omitted[file] = before + begin - KEPT_HEAD_BYTES - len(_omission_line(before))
            source, end = (
                begin,
                KEPT_HEAD_BYTES + os.pwrite(descriptor, _omission_line(self._omitted[file]), KEPT_HEAD_BYTES),
            )
            # the tail, and what is appended meanwhile, unless that is faster than it is copied
            while source < begin + 2 * KEPT_TAIL_BYTES and (
                part := os.pread(descriptor, KEPT_TAIL_BYTES, source)
            ):
                source += len(part)
                end += os.pwrite(descriptor, part, end)
            log.truncate(end)


def _omission_line(omitted: int) -> bytes:
    """Line in place of the *omitted* bytes; nothing if there are none."""
    text = f"\n[distbench left out {omitted:,} bytes here: a log may have {MAX_LOG_BYTES >> 20} MiB]\n"
    return text.encode() if omitted else b""


def log_excerpt(file: Path) -> str:
    """What a record keeps of the log *file*: its end, with the place of the whole; empty if there is none."""
    text = read_tail(file, _EXCERPT_BYTES)
    size = file.stat().st_size if text else 0
    return f"[the last of {size:,} bytes of {file.name}]\n{text}" if size > _EXCERPT_BYTES else text


def read_tail(file: Path, size: int) -> str:
    """The last *size* bytes of *file* as text; empty if there is no such file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - size))
            # and no more, should it grow faster than it is read
            return stream.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""
