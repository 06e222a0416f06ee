"""Logs of ranks: cut where they grow without end; the part of one that a record keeps."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOST = 64 << 20
"""Bytes from which on a log is cut."""
HEAD, TAIL = 1 << 20, 8 << 20
"""Bytes of its begin and of its end that a cut leaves."""
_RECORDED = 4000


class Logs:
    """Logs that grow, each of which is cut to its begin and its end whenever it has passed ``MOST`` bytes.

    Who writes one is neither asked nor slowed down: it appends, so that its next line follows what was left.
    What it writes in the microseconds before a cut may be lost.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._left_out = dict.fromkeys(files, 0)

    def cut(self) -> None:
        """Cut those that have passed the limit.

        Raises:
            OSError: one can't be written.
        """
        for file in self._left_out:
            # there is none before its rank has started
            with suppress(FileNotFoundError):
                if file.stat().st_size > MOST:
                    self._cut(file)

    def _cut(self, file: Path) -> None:
        before = self._left_out[file]
        with file.open("r+b") as log:
            descriptor, begin = log.fileno(), log.seek(0, os.SEEK_END) - TAIL
            self._left_out[file] = before + begin - HEAD - len(_remark(before))
            source, end = begin, HEAD + os.pwrite(descriptor, _remark(self._left_out[file]), HEAD)
            # the tail, and what is appended meanwhile, unless that is faster than it is copied
            while source < begin + 2 * TAIL and (part := os.pread(descriptor, TAIL, source)):
                source += len(part)
                end += os.pwrite(descriptor, part, end)
            log.truncate(end)


def _remark(left_out: int) -> bytes:
    """Line in place of the *left_out* bytes; nothing if there are none."""
    text = f"\n[distbench left out {left_out:,} bytes here: a log may have {MOST >> 20} MiB]\n"
    return text.encode() if left_out else b""


def recorded(file: Path) -> str:
    """What a record keeps of the log *file*: its end, with the place of the whole; empty if there is none."""
    text = tail(file, _RECORDED)
    size = file.stat().st_size if text else 0
    return f"[the last of {size:,} bytes of {file.name}]\n{text}" if size > _RECORDED else text


def tail(file: Path, size: int) -> str:
    """The last *size* bytes of *file* as text; empty if there is no such file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - size))
            # and no more, should it grow faster than it is read
            return stream.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""
