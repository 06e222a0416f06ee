"""Logs of ranks: cut if they grow too large; excerpts for records."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 64 << 20
"""Size in bytes above which a log is cut."""
KEPT_HEAD_BYTES, KEPT_TAIL_BYTES = 1 << 20, 8 << 20
"""Bytes of its beginning and of its end that a cut keeps."""
_EXCERPT_BYTES = 4000


class BoundedLogs:
    """Growing logs; each is cut to its beginning and its end above ``MAX_LOG_BYTES`` bytes.

    The writer of a log is neither involved nor slowed down: it appends, so its next line follows the kept
    end. What it writes in the microseconds before a cut may be lost.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._omitted = dict.fromkeys(files, 0)

    def trim(self) -> None:
        """Cut the logs that exceed the limit.

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
            # the tail, and data appended meanwhile, unless it comes faster than it is copied
            while source < begin + 2 * KEPT_TAIL_BYTES and (
                part := os.pread(descriptor, KEPT_TAIL_BYTES, source)
            ):
                source += len(part)
                end += os.pwrite(descriptor, part, end)
            log.truncate(end)


def _omission_line(omitted: int) -> bytes:
    """Line in place of the *omitted* bytes; nothing if there are none."""
    text = f"\n[distbench removed {omitted:,} bytes here: logs are limited to {MAX_LOG_BYTES >> 20} MiB]\n"
    return text.encode() if omitted else b""


def log_excerpt(file: Path) -> str:
    """Excerpt of the log *file* for a record: its end, and the name of the file; empty if there is none."""
    text = read_tail(file, _EXCERPT_BYTES)
    size = file.stat().st_size if text else 0
    return f"[the last of {size:,} bytes of {file.name}]\n{text}" if size > _EXCERPT_BYTES else text


def read_tail(file: Path, size: int) -> str:
    """The last *size* bytes of *file* as text; empty if there is no such file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - size))
            # and no more, if it grows faster than it is read
            return stream.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""
