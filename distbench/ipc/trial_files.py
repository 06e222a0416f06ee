"""Files between a run and the ranks of a trial, all in the trial's folder."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from distbench.core.case import Case, PluginChoice
from distbench.core.job import MEASURE_JOB, JobSpec
from distbench.core.measurement import MeasureConfig, TimeLimits
from distbench.core.serialization import decode
from distbench.system.files import write_atomic

SKETCH_COLUMNS = tuple(f"s{i:02}" for i in range(16))
"""Columns of a tensor's sketch in the tables ``check_tensors`` and ``checkpoint_tensors``."""
DRAWS_KEY = "draws_random_numbers"
"""Key of a record's environment: true if the model drew random numbers while it trained, as dropout does."""
NO_DROPOUT_KEY = "without_dropout"
"""Key of a record's environment: dropout of the model that was turned off, in words."""
LOSS_DTYPE_KEY = "loss_dtype"
"""Key of a record's environment: dtype of the loss of the model's micro-batches."""
DETERMINISM_KEY = "determinism"
"""Key of a record's environment with deterministic algorithms: ``STRICTLY_DETERMINISTIC``, or the
exceptions."""
STRICTLY_DETERMINISTIC = "strict"
_SLOW_WRITE_S = 0.005
"""Duration of a write on a slow file system: a local one takes some microseconds."""
_MAX_SLOW_WRITES = 3
"""Slow writes in a row before a thread takes over: a rank writes as many marks before its first step."""
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes no more data; also exit codes of a rank that can't write its error."""

PREPARE_FOLDER = "prepare"
"""Folder of a run for results that are built or determined once for all of its trials."""


def fingerprint_version(digest: str) -> str:
    """Version of a fingerprint with *digest*; fingerprints of different versions are not comparable.

    Empty: the first version, whose digests do not name it.
    """
    return digest.rpartition("-")[0]


@dataclass(frozen=True)
class TrialInstructions:
    """Instructions for every rank (``trial.json``)."""

    run_id: str
    case: Case
    measure: MeasureConfig
    limits: TimeLimits
    metrics: list[PluginChoice]
    weights: str
    """File of the initial weights."""
    job: JobSpec = MEASURE_JOB
    output_file: str = ""
    """File to leave for later trials of the run; empty: none."""
    input_file: str = ""
    """File that an earlier trial of the run left; empty: none."""

    def write(self, file: Path) -> None:
        """Write the file; the folder exists."""
        write_atomic(file, json.dumps({**dataclasses.asdict(self), "job": self.job.to_json()}))

    @classmethod
    def read(cls, file: Path) -> TrialInstructions:
        """Content of *file*, which ``write`` wrote."""
        data = json.loads(file.read_text())
        trial = decode(cls, data, str(file))
        # the type of a job's options depends on its kind
        return dataclasses.replace(trial, job=JobSpec.from_json(data["job"], str(file)))


def result_file(folder: Path, rank: int) -> Path:
    """File with the result of *rank*; it exists only if the rank has finished."""
    return folder / f"rank{rank}.json"


def partial_result_file(folder: Path, rank: int) -> Path:
    """File with the result of *rank* so far, while the rest may still fail; then ``result_file``."""
    return folder / f"rank{rank}.interim.json"


@dataclass(frozen=True)
class RankError:
    """Exception that ended a rank (``rank<N>.error.json``)."""

    at: float
    """``clock.now()`` when it was raised."""
    phase: str
    types: list[str]
    """Names of its class and of that one's base classes, most specific first."""
    message: str
    traceback: str = ""
    user_line: str = ""
    """Line of the user's code from which it comes; empty: it comes from elsewhere."""
    device_free: int | None = None
    """Free bytes on the device when CUDA reported that memory ran out; None: it did not, or unknown."""
    device: dict[str, Any] | None = None
    """Facts of the rank's device; None: not known yet."""
    largest: list[str] = field(default_factory=list)
    """Of a device out of memory: its largest tensors, with bytes; the rank's log has more of them."""

    def write(self, folder: Path, rank: int) -> None:
        """Write the file of *rank*.

        Raises:
            OSError: it can't be written.
        """
        write_atomic(error_file(folder, rank), json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankError | None:
        """Error of *rank*; None if it has written none.

        Raises:
            RecordError: the file holds something else.
        """
        file = error_file(folder, rank)
        return decode(cls, json.loads(file.read_text()), str(file)) if file.is_file() else None


def error_file(folder: Path, rank: int) -> Path:
    """File that *rank* writes when it raises."""
    return folder / f"rank{rank}.error.json"


def memory_snapshot_file(folder: Path, rank: int) -> Path:
    """Snapshot of CUDA's allocator that *rank* leaves when its device runs out of memory."""
    return folder / f"rank{rank}.memory.pickle"


def log_file(folder: Path, rank: int) -> Path:
    """File with everything that *rank* prints."""
    return folder / f"rank{rank}.log"


def progress_file(folder: Path, rank: int) -> Path:
    """File in which *rank* reports its progress."""
    return folder / f"rank{rank}.progress"


class ProgressWriter:
    """Writer of a rank's progress marks: a few bytes overwritten in place, cheap enough for every step.

    After several slow writes in a row, as on network file systems, a thread writes the latest mark: a step
    must not wait for it, and readers there are late anyway.
    """

    def __init__(self, file: Path, write: Callable[[int, bytes, int], int] = os.pwrite) -> None:
        """Write to *file* with *write*, a function like ``os.pwrite``."""
        self._descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._write, self._count, self._slow = write, 0, 0
        self._queue: SimpleQueue[bytes] | None = None

    def report(self, phase: str, step: int = 0) -> None:
        """Report that *step* of *phase* begins."""
        self._count += 1
        line = _encode(ProgressMark(phase, step, self._count))
        if self._queue is not None:
            self._queue.put(line)
            return
        began = time.perf_counter()
        self._write(self._descriptor, line, 0)
        # a single slow write may be a process that got no CPU
        self._slow = self._slow + 1 if time.perf_counter() - began > _SLOW_WRITE_S else 0
        if self._slow == _MAX_SLOW_WRITES:
            self._queue = SimpleQueue()
            threading.Thread(
                target=self._write_latest, args=[self._queue], name="progress", daemon=True
            ).start()

    def _write_latest(self, queue: SimpleQueue[bytes]) -> None:
        while True:
            line = queue.get()
            with suppress(Empty):
                while True:
                    line = queue.get_nowait()
            # the next write may succeed
            with suppress(OSError):
                self._write(self._descriptor, line, 0)


@dataclass(frozen=True)
class ProgressMark:
    """Progress mark of a rank."""

    phase: str = "start"
    step: int = 0
    sequence: int = 0
    """Number of the mark, so that a new one differs from the last, whatever any clock says."""


def read_progress(file: Path) -> ProgressMark | None:
    """Last progress mark of a rank; None before the first."""
    try:
        phase, step, number = file.read_text().split()
        return ProgressMark(phase, int(step), int(number))
    except (FileNotFoundError, ValueError):
        return None


def write_progress(file: Path, mark: ProgressMark) -> None:
    """Write the progress *mark* of a rank whose own file is not visible here."""
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o644)
    os.pwrite(descriptor, _encode(mark), 0)
    os.close(descriptor)


def _encode(mark: ProgressMark) -> bytes:
    return f"{mark.phase} {mark.step} {mark.sequence}\n".ljust(48).encode()


@dataclass
class PhaseTimer:
    """Current phase of this rank, and the duration of each phase."""

    progress: ProgressWriter
    current: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as phase *name*, and report it to the parent."""
        self.current = name
        self.progress.report(name)
        began = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Add *seconds* to phase *name*, which a job with several trainings passes several times."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
