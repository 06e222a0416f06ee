"""What a disk gives by itself: blocks past the page cache, several at a time, as async_io moves them."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from distbench.metrics.base import Absent

BLOCK, DEPTH = 1 << 20, 8
"""Bytes of a block and blocks in flight: DeepSpeed's own ``aio.block_size`` and ``aio.queue_depth``."""
_BLOCKS = 128
_LEAST_S = 0.5


@dataclass(frozen=True)
class Moved:
    """What was read or written, and in what time."""

    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds


def probe(folder: Path, least_s: float = _LEAST_S, blocks: int = _BLOCKS) -> dict[str, Moved]:
    """``read`` and ``written``: a file of *blocks* blocks in *folder*, over and over for *least_s* seconds.

    The blocks are there before anything is timed, as they are in a training from its second step on. The file
    has no name while this runs, so nothing stays of it.

    Raises:
        Absent: the file system can't move data past the page cache, or has no room.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _probed(folder / f"distbench-probe-{os.getpid()}", least_s, blocks)
    except OSError as error:
        raise Absent(f"{folder} can't be read and written with O_DIRECT: {error.strerror}") from error


def _probed(file: Path, least_s: float, blocks: int) -> dict[str, Moved]:
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_DIRECT | os.O_EXCL, 0o600)
    # whatever ends this process, nothing stays
    file.unlink()
    # O_DIRECT takes memory that is aligned to pages; what a disk can't compress
    buffers = [mmap.mmap(-1, BLOCK) for _ in range(DEPTH)]
    for buffer in buffers:
        buffer[:] = os.urandom(BLOCK)

    def write(buffer: mmap.mmap, block: int) -> int:
        return os.pwrite(descriptor, buffer, block * BLOCK)

    def read(buffer: mmap.mmap, block: int) -> int:
        return os.preadv(descriptor, [buffer], block * BLOCK)

    try:
        with ThreadPoolExecutor(DEPTH) as pool:
            _moved(pool, buffers, write, blocks, 0.0)
            return {
                "written": _moved(pool, buffers, write, blocks, least_s),
                "read": _moved(pool, buffers, read, blocks, least_s),
            }
    finally:
        os.close(descriptor)


def _moved(
    pool: ThreadPoolExecutor,
    buffers: Sequence[mmap.mmap],
    move: Callable[[mmap.mmap, int], int],
    blocks: int,
    least_s: float,
) -> Moved:
    """Have a thread for each buffer *move* the next block, until all were moved and *least_s* is over."""
    numbers, began = itertools.count(), time.perf_counter()

    def work(buffer: mmap.mmap) -> int:
        total = 0
        while (number := next(numbers)) < blocks or time.perf_counter() - began < least_s:
            total += move(buffer, number % blocks)
        return total

    total = sum(pool.map(work, buffers))
    return Moved(total, time.perf_counter() - began)
