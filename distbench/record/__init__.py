"""The record of one trial: data model and format version.

``data_files`` and ``parquet`` write and read records; ``run_folder`` is the folder of a run. A record carries
the description of its own columns, so that old and foreign records can be read without loading plug-ins. Raw
samples are kept; statistics are computed on reading.

Format history (of record.json and run.json):
  3  a record names the job its trial was launched for (``job``); those of checks are in checks/.
  2  samples and table rows are in Parquet files next to record.json (``data_files.py``), which names the
     files and their checksums; a column description names the pass its samples come from.
  1  (0.1.0) first format: samples and tables inside record.json.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from distbench.core.bounds import Bound, Name
from distbench.core.case import MAX_WORLD_SIZE, Case
from distbench.core.columns import Better, RankReduction, TableSpec
from distbench.core.errors import RecordError, RecordFormatError
from distbench.core.job import MEASURE_JOB, JobSpec
from distbench.core.serialization import decode, parse_json
from distbench.strategies.description import StrategyDescription
from distbench.system.files import read_bounded

FORMAT_VERSION = 3
_OLDEST_VERSION = 1
MAX_JSON_BYTES = 32 << 20
"""Size limit of a JSON file of a run or a gate: records take some 20 KB, the cases of ``run.json`` some 1.5
KB each.
"""
NO_REFERENCE_TEXT = "its reference has no result"
"""Start of the reason of a trial that was not launched because its reference failed."""
NOT_LAUNCHED_TEXT = "not launched"
"""Start of the reason of a trial that was not launched because the user's model raises in any trial."""
NODE_LOST_PHASE = "node"
"""``Failure.phase`` of a trial that lost a node."""

Samples = dict[str, list[list[float | None]]]
RecordRow = dict[str, Any]
Seconds = Annotated[float, Bound(-(2**31))]
"""Finite; negative if a clock was set back."""

ColumnFacts = TypedDict(
    "ColumnFacts",
    {
        "unit": Name,
        "better": Better,
        "over_ranks": RankReduction,
        "doc": str,
        "per_step": bool,
        "metric": Name,
        "pass": Name,
    },
    total=False,
)
"""Description of a column in a record. A foreign one may lack any of these."""


class Status(enum.StrEnum):
    """Outcome of a trial or a case. A closed set: readers may rely on these words."""

    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    """This case can't run here, which is known before launch."""
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    CRASHED = "crashed"
    """A rank raised, was killed by a signal, or exited without a result; or distbench itself raised."""
    HANG = "hang"
    """A step, or the whole trial, exceeded its time limit."""
    INIT_TIMEOUT = "init_timeout"
    """The process group or the engine was not ready in time."""
    INVALID_NAN = "invalid_nan"
    """The loss was not finite at some step."""
    MISMATCH = "mismatch"
    """The live engine does not match the requested configuration."""
    PREPARE_FAILED = "prepare_failed"
    """C++ ops or the initial weights could not be built."""
    CANCELLED = "cancelled"
    """Stopped by Ctrl-C or SIGTERM."""

    @property
    def is_failure(self) -> bool:
        """True if a run with such a case exits with code 1."""
        return self not in (Status.MEASURED, Status.UNSUPPORTED)


WARMUP_ROUND = -1
"""Round of a gate's warm-up trials, which are discarded unless both arms run the same code."""
SECOND_SERIES_START = 1000
"""First round of a gate's second series; a first series never has that many."""


def round_text(round_: int) -> str:
    """A round in words, counted from 1."""
    if round_ == WARMUP_ROUND:
        return "warm-up"
    if round_ >= SECOND_SERIES_START:
        return f"second series, round {round_ - SECOND_SERIES_START + 1}"
    return f"round {round_ + 1}"


@dataclass(frozen=True)
class Failure:
    """The rank that failed first, with its traceback and log."""

    rank: Annotated[int, Bound(0, MAX_WORLD_SIZE)] | None
    """The rank that failed first (not those that failed as a result); None if unknown."""
    phase: Name
    """Phase of that rank: start, build, warmup, time, profile; ``distbench``: not a rank but distbench
    itself failed; ``node``: a node was lost, with all that ran there.
    """
    traceback: str = ""
    log: str = ""
    """The last lines of that rank's log, or of every rank's."""
    steps: dict[str, str] = field(default_factory=dict)
    """Rank -> last sign of life, e.g. ``time 7``."""
    user_error: str = ""
    """The exception raised by the user's own code, with its type, file and line; empty: none, or unknown, as
    in records of earlier versions.
    """

    @property
    def user_place(self) -> str:
        """``user_error_text`` without its message: ``RuntimeError at mymodel.py:12``."""
        return self.user_error.partition(": ")[0]


@dataclass(frozen=True)
class Attempt:
    """An earlier launch of a trial that failed and was repeated."""

    status: Status
    reason: str
    started: str
    """UTC, ISO 8601."""
    wall_s: float
    """From launch to the exit of the last process; 0 if nothing was launched."""
    failure: Failure | None = None


@dataclass(frozen=True)
class RankDevice:
    """The device of a rank."""

    kind: Literal["cpu", "cuda"]
    index: Annotated[int, Bound(0)] | None = None
    """Number of the GPU on its node, as nvidia-smi counts; None: a CPU, or unknown to the driver."""
    uuid: str = ""
    """UUID of the GPU, as ``nvidia-smi -L`` shows it; empty: a CPU."""


@dataclass(frozen=True)
class Record:
    """One trial of one case."""

    run_id: Name
    case: Case
    case_id: Name
    round: Annotated[int, Bound(WARMUP_ROUND)]
    """0 for the first trial of a case; in a gate also ``WARMUP_ROUND``, or ``SECOND_SERIES_START`` and up."""
    status: Status
    reason: str
    """Empty when measured to the end; otherwise one sentence."""
    started: Name
    """UTC, ISO 8601."""
    wall_s: Seconds
    """From launch to the exit of the last process; 0 if nothing was launched."""
    columns: dict[str, Annotated[dict[str, Any], ColumnFacts]] = field(default_factory=dict)
    """Column name -> unit, better, over_ranks, doc, per_step, metric, and the pass of its samples."""
    values: dict[str, float] = field(default_factory=dict)
    """Column name -> one number for the trial, over ranks and steps."""
    absent: dict[str, str] = field(default_factory=dict)
    """Column name -> reason why there is no number."""
    samples: Mapping[str, list[list[float | None]]] = field(default_factory=dict)
    """Column name -> rank -> step (one entry where the column is not per step)."""
    warmup_losses: list[list[float | None]] = field(default_factory=list)
    """Rank -> loss of each warm-up step; None where it is not finite."""
    tables: Mapping[str, list[RecordRow]] = field(default_factory=dict)
    """Table name -> rows; rows written by ranks have a ``rank``."""
    phases: dict[str, list[Seconds]] = field(default_factory=dict)
    """Phase -> seconds by rank: start, build, warmup, time, profile."""
    effective: dict[str, Any] = field(default_factory=dict)
    """Effective settings, read back from the live engine of rank 0."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Facts of the worker: versions, device, threads."""
    failure: Failure | None = None
    """Of a measured trial: what failed after its timed steps; the numbers of that part are absent."""
    job: JobSpec = MEASURE_JOB
    """The job that the trial was launched for."""
    degraded: str = ""
    """Reason why a measured trial is left out of comparisons (noisy machine); empty: it is clean."""
    described_strategy: StrategyDescription | None = None
    """The strategy's description of its settings, its theory and itself; None in records of earlier
    versions.
    """
    described_tables: dict[str, TableSpec] = field(default_factory=dict)
    """Table name -> description of it and its columns; empty in records of earlier versions."""
    attempts: list[Attempt] = field(default_factory=list)
    """Earlier launches of the trial that failed, the first one first; empty in
    records of earlier versions.
    """

    nodes: dict[str, list[int]] = field(default_factory=dict)
    """Node -> the ranks that ran on it; empty: all ran on the command's host, or nothing was launched."""
    devices: list[RankDevice | None] = field(default_factory=list)
    """Device of each rank; None of a rank that ended before it reported one. None in records of earlier
    versions.
    """
    code: list[str] = field(default_factory=list)
    """Digests of the source files that each rank imported, without those of installed packages; an empty text
    if it imported none. Empty if the trial was not measured, and in records of earlier versions.
    """

    def node_of(self, rank: int) -> str:
        """Name of the node that *rank* ran on; empty: the command's host."""
        return next((name for name, ranks in self.nodes.items() if rank in ranks), "")

    @property
    def attempts_including_this(self) -> list[Attempt]:
        """``attempts``, and this launch if it failed: the attempts for the record of the next launch."""
        if not self.status.is_failure or self.status is Status.CANCELLED:
            return self.attempts
        this = Attempt(self.status, self.reason, self.started, self.wall_s, self.failure)
        return [*self.attempts, this]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Unique key within a run: job, name and id of the case, round."""
        return self.job.kind, self.case.name, self.case_id, self.round

    def to_json(self, file_entries: Mapping[str, Any]) -> dict[str, Any]:
        """The record as plain JSON types, format number first.

        *file_entries* describe the files with samples and tables, in place of their content.
        """
        plain = dataclasses.asdict(dataclasses.replace(self, samples={}, tables={}))
        return {"format": FORMAT_VERSION, **plain, "job": self.job.to_json(), **file_entries}

    @classmethod
    def from_json(cls, data: dict[str, Any], source: str) -> Record:
        """Build the record that *data* describes, with samples and tables in it.

        Raises:
            RecordError: another format, or something is missing or of the wrong kind.
        """
        check_format(data, source)
        record = decode(cls, data, source)
        # the type of a job's options depends on its kind
        return (
            dataclasses.replace(record, job=JobSpec.from_json(data["job"], source))
            if "job" in data
            else record
        )


def records_of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    """Return the *records* whose jobs are of *kind*."""
    return [record for record in records if record.job.kind == kind]


def check_format(data: object, source: str) -> None:
    """Check that this version can read the format of *data*.

    Raises:
        RecordFormatError: only another version can.
        RecordError: *data* is not a file of distbench.
    """
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise RecordError(f"{source}: format: missing; not a distbench file")
    number = data["format"]
    if number > FORMAT_VERSION:
        raise RecordFormatError(
            f"{source}: format = {number}: written by a newer distbench; "
            f"this version reads up to {FORMAT_VERSION}. Upgrade distbench to read it."
        )
    if number < _OLDEST_VERSION:
        raise RecordFormatError(
            f"{source}: format = {number}: too old; this version reads "
            f"{_OLDEST_VERSION} to {FORMAT_VERSION}. Read it with the version that wrote it."
        )


def read_json(file: Path) -> Any:
    """Parsed content of *file*.

    Raises:
        RecordError: the file can't be read, is too large, is empty, or is not valid JSON.
    """
    try:
        data = read_bounded(file, MAX_JSON_BYTES)
    except OSError as error:
        raise RecordError(f"{file}: can't be read: {error.strerror}") from error
    return parse_json(data, str(file))
