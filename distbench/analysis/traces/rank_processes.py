"""Read the traces of several ranks at once, each in a process of its own.

The events of a trace take several times the bytes of its file, and are gone with the process that read them.
The processes are those of this interpreter and not of ``multiprocessing``, which would import the program
that calls ``distbench.trace`` once more.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from distbench.analysis.traces.rank_trace import RankTrace, read_rank
from distbench.core.errors import InfrastructureError
from distbench.system.cpus import core_count
from distbench.system.interpreters import make_python_path
from distbench.system.machine import free_memory
from distbench.system.processes import exit_text
from distbench.traces.chrome_file import TraceFileError

_LEAST_BYTES = 16 << 20
"""Bytes of JSON below which starting processes takes longer than reading."""
_MEMORY_FACTOR = 3.5
"""Memory that reading takes at most, over the bytes of JSON."""
_PROCESS_BYTES = 150 << 20
_CODE = "from distbench.analysis.traces.rank_processes import serve; serve()"


@dataclass(frozen=True)
class RankFile:
    """File of one rank."""

    path: Path
    rank: int
    """Its rank, if neither the file nor its name tells one."""
    is_given: bool = False
    """True if it is of that rank in any case."""

    def read(self) -> RankTrace:
        """Read and analyse it here.

        Raises:
            TraceFileError: it is no trace.
        """
        return read_rank(self.path, self.rank, is_given=self.is_given)

    @property
    def text_bytes(self) -> int:
        """Bytes of JSON in it; 0 if it can't be read."""
        try:
            with self.path.open("rb") as file:
                is_compressed = file.read(2) == b"\x1f\x8b"
                size = file.seek(0, os.SEEK_END)
                if not is_compressed or size < 4:
                    return size
                file.seek(-4, os.SEEK_END)
                # the size modulo 4 GiB; nothing grows by compression
                text = int.from_bytes(file.read(4), "little")
                return text + (max(size - text, 0) + (1 << 32) - 1 >> 32 << 32)
        except OSError:
            return 0


def read_ranks(files: Sequence[RankFile]) -> Iterator[RankTrace]:
    """Yield the analysed traces in *files*, in their order; several are read at once, as far as they fit.

    Raises:
        TraceFileError: one is no trace.
        InfrastructureError: a process was killed, most likely as memory ran out.
    """
    sizes = [file.text_bytes for file in files]
    if len(files) == 1 or sum(sizes) < _LEAST_BYTES:
        yield from (file.read() for file in files)
        return
    reading = _Reading()
    with ThreadPoolExecutor(process_count(sizes, core_count(), free_memory())) as pool:
        try:
            yield from pool.map(reading.read, files)
        finally:
            # after an error the others are of no use, and would be waited for
            reading.stop()


def process_count(sizes: Sequence[int], cores: int, free_bytes: int) -> int:
    """Number of processes for files with *sizes* bytes of JSON: one a core, as far as the largest fit."""
    count, left = 0, float(free_bytes)
    for size in sorted(sizes, reverse=True)[:cores]:
        left -= _PROCESS_BYTES + _MEMORY_FACTOR * size
        if left < 0:
            break
        count += 1
    return max(count, 1)


@dataclass
class _Reading:
    """Processes that read."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_stopped: bool = False

    def read(self, file: RankFile) -> RankTrace:
        """Read *file* in a process of its own."""
        environment = {**os.environ, "PYTHONPATH": make_python_path()}
        with self.lock:
            if self.is_stopped:
                raise TraceFileError(f"{file.path}: it is not needed any more")
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self.running.append(process)
        answer, _ = process.communicate(pickle.dumps(file))
        if process.returncode:
            raise InfrastructureError(
                f"{file.path}: the process that read it {exit_text(process.returncode)}",
                "if memory ran out, free some, or read fewer files at once",
            )
        read = pickle.loads(answer)
        if isinstance(read, str):
            raise TraceFileError(read)
        analysed: RankTrace = read
        return analysed

    def stop(self) -> None:
        """End those that still run."""
        with self.lock:
            self.is_stopped = True
            for process in self.running:
                process.kill()


def serve() -> None:
    """Read the file that stdin names; write its analysed trace to stdout, or the message of the error."""
    file: RankFile = pickle.load(sys.stdin.buffer)
    try:
        answer: RankTrace | str = file.read()
    except TraceFileError as error:
        answer = str(error)
    pickle.dump(answer, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
