"""Measure the throughput of a disk with direct I/O, several blocks at a time as async_io does."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from distbench.metrics.base import NotAvailable

BLOCK_BYTES, QUEUE_DEPTH = 1 << 20, 8
"""Bytes of a block and blocks in flight: DeepSpeed's own ``aio.block_size`` and ``aio.queue_depth``."""
_BLOCKS = 128
_MIN_SECONDS = 0.5


@dataclass(frozen=True)
class DiskTransfer:
    """Bytes read or written, and the time that it took."""

    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds


def probe_disk(
    folder: Path, min_seconds: float = _MIN_SECONDS, blocks: int = _BLOCKS
) -> dict[str, DiskTransfer]:
    """Measure transfers ``read`` and ``written``: a file of *blocks* blocks, *min_seconds* seconds each.

    All blocks are written before anything is timed, as in a training from its second step. The file in
    *folder* has no name while this runs, so nothing remains of it.

    Raises:
        NotAvailable: the file system does not support direct I/O, or has no space.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _probe_file(folder / f"distbench-probe-{os.getpid()}", min_seconds, blocks)
    except OSError as error:
        raise NotAvailable(f"can't read and write {folder} with O_DIRECT: {error.strerror}") from error


def _probe_file(file: Path, min_seconds: float, blocks: int) -> dict[str, DiskTransfer]:
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_DIRECT | os.O_EXCL, 0o600)
    # nothing remains, however this process ends
    file.unlink()
    # O_DIRECT needs page-aligned memory; random bytes, which a disk can't compress
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(QUEUE_DEPTH)]
    for buffer in buffers:
        buffer[:] = os.urandom(BLOCK_BYTES)

    def write(buffer: mmap.mmap, block: int) -> int:
        return os.pwrite(descriptor, buffer, block * BLOCK_BYTES)

    def read(buffer: mmap.mmap, block: int) -> int:
        return os.preadv(descriptor, [buffer], block * BLOCK_BYTES)

    try:
        with ThreadPoolExecutor(QUEUE_DEPTH) as pool:
            _transfer(pool, buffers, write, blocks, 0.0)
            return {
                "written": _transfer(pool, buffers, write, blocks, min_seconds),
                "read": _transfer(pool, buffers, read, blocks, min_seconds),
            }
    finally:
        os.close(descriptor)


def _transfer(
    pool: ThreadPoolExecutor,
    buffers: Sequence[mmap.mmap],
    move: Callable[[mmap.mmap, int], int],
    blocks: int,
    min_seconds: float,
) -> DiskTransfer:
    """Apply *move* to blocks, one thread per buffer, until all are moved and *min_seconds* have passed."""
    numbers, began = itertools.count(), time.perf_counter()

    def work(buffer: mmap.mmap) -> int:
        total = 0
        while (number := next(numbers)) < blocks or time.perf_counter() - began < min_seconds:
            total += move(buffer, number % blocks)
        return total

    total = sum(pool.map(work, buffers))
    return DiskTransfer(total, time.perf_counter() - began)
