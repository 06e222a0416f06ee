"""The record: all that one trial leaves, as files that describe themselves.

A record carries the description of its own columns, so that old and foreign records are read
with no plug-in loaded. Raw samples are kept; statistics are computed when they are read.

Format history (of record.json and run.json):
  3  a record says what its trial was launched for (``job``); those of checks stand in checks/.
  2  samples and the rows of tables stand beside record.json as Parquet (``beside.py``), which names
     the files and their digests; a described column names the pass that its samples come from.
  1  (0.1.0) first format: samples and tables inside of record.json.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.case import Case
from distbench.errors import RecordError
from distbench.job import MEASURE, Job

FORMAT = 3
_OLDEST_READABLE = 1

Samples = dict[str, list[list[float | None]]]
Row = dict[str, Any]


class Status(enum.StrEnum):
    """How a trial, or a case, ended. Closed: a reader may rely on these words."""

    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    """Known before launch: this case can't run here."""
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    CRASHED = "crashed"
    """A rank raised, was ended by a signal, or left without delivering."""
    HANG = "hang"
    """A step, or the whole trial, passed its deadline."""
    INIT_TIMEOUT = "init_timeout"
    """The process group or the engine was not ready by its deadline."""
    INVALID_NAN = "invalid_nan"
    """The loss was not finite at some step."""
    MISMATCH = "mismatch"
    """What ran is not what was asked for."""
    PREPARE_FAILED = "prepare_failed"
    """C++ ops or the initial weights could not be built."""
    CANCELLED = "cancelled"
    """Stopped by Ctrl-C or SIGTERM."""

    @property
    def is_failure(self) -> bool:
        """Whether a run with such a case ends with exit code 1."""
        return self not in (Status.MEASURED, Status.UNSUPPORTED)


WARM_UP = -1
"""Round of the trials of a gate that are thrown away."""
SECOND_SERIES = 1000
"""First round of what a gate confirms with: more than a first series may have."""


def round_text(round_: int) -> str:
    """Return what people call a round, counted from 1."""
    if round_ == WARM_UP:
        return "warm-up"
    if round_ >= SECOND_SERIES:
        return f"second series, round {round_ - SECOND_SERIES + 1}"
    return f"round {round_ + 1}"


@dataclass(frozen=True)
class Failure:
    """Who failed first, and where to read on."""

    rank: int | None
    """The rank that failed first (not its victims), None if no rank can be blamed."""
    phase: str
    """What that rank was doing: start, build, warmup, time, profile."""
    traceback: str = ""
    log: str = ""
    """The last lines of that rank's log, or of every rank's."""
    steps: dict[str, str] = field(default_factory=dict)
    """Rank -> last sign of life, e.g. ``time 7``."""


@dataclass(frozen=True)
class Record:
    """One trial of one case."""

    run_id: str
    case: Case
    case_id: str
    round: int
    """0 for the first trial of a case; of a gate also ``WARM_UP``, and ``SECOND_SERIES`` and up."""
    status: Status
    reason: str
    """Empty when measured; otherwise one sentence."""
    started: str
    """UTC, ISO 8601."""
    wall_s: float
    """Launch to the end of the last process; 0 when nothing was launched."""
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Column name -> unit, better, over_ranks, doc, per_step, metric, and the pass of its samples."""
    values: dict[str, float] = field(default_factory=dict)
    """Column name -> one number for the trial, over ranks and steps."""
    absent: dict[str, str] = field(default_factory=dict)
    """Column name -> why there is no number."""
    samples: Mapping[str, list[list[float | None]]] = field(default_factory=dict)
    """Column name -> rank -> step (one entry where the column is not per step)."""
    warmup_losses: list[list[float]] = field(default_factory=list)
    """Rank -> loss of each warm-up step."""
    tables: Mapping[str, list[Row]] = field(default_factory=dict)
    """Table name -> rows; those that ranks left have their ``rank``."""
    phases: dict[str, list[float]] = field(default_factory=dict)
    """Phase -> seconds by rank: start, build, warmup, time, profile."""
    effective: dict[str, Any] = field(default_factory=dict)
    """What the live engine of rank 0 really did."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Facts of the worker: versions, device, threads."""
    failure: Failure | None = None
    job: Job = MEASURE
    """What the trial was launched for."""
    degraded: str = ""
    """Why a measured trial is kept out of comparisons (a disturbed machine); empty: it is sound."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from every other record of a run: job, name and id of the case, round."""
        return self.job.kind, self.case.name, self.case_id, self.round

    def to_json(self, beside: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record as plain JSON types, its format number first.

        *beside* tells of the files that hold samples and tables, and stands in their place.
        """
        plain = dataclasses.asdict(dataclasses.replace(self, samples={}, tables={}))
        return {"format": FORMAT, **plain, **beside}

    @classmethod
    def from_json(cls, data: dict[str, Any], source: str) -> Record:
        """Return the record that *data* describes, with samples and tables in it.

        Raises:
            RecordError: another format, or something is missing or of the wrong kind.
        """
        check_format(data, source)
        plain = {k: v for k, v in data.items() if k != "format"}
        try:
            plain["case"] = Case.from_json(plain["case"])
            plain["status"] = Status(plain["status"])
            if "job" in plain:
                plain["job"] = Job(**plain["job"])
            if plain.get("failure"):
                plain["failure"] = Failure(**plain["failure"])
            return cls(**plain)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{source}: not a readable record: {error}") from error


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    """Return the *records* of jobs of that *kind*."""
    return [record for record in records if record.job.kind == kind]


def check_format(data: object, source: str) -> None:
    """Raise RecordError unless *data* is of a format that this version reads."""
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise RecordError(f"{source}: format: missing; this is no file of distbench")
    found = data["format"]
    if found > FORMAT:
        raise RecordError(
            f"{source}: format = {found}: written by a newer distbench; "
            f"this one reads up to {FORMAT}. Upgrade distbench to read it."
        )
    if found < _OLDEST_READABLE:
        raise RecordError(
            f"{source}: format = {found}: too old; this distbench reads "
            f"{_OLDEST_READABLE} to {FORMAT}. Read it with the version that wrote it."
        )


def read_json(file: Path) -> Any:
    """Return the parsed *file*.

    Raises:
        RecordError: the file can't be read, is empty, or holds no JSON.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file}: can't be read: {error}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        found = "the file is empty" if not text.strip() else f"line {error.lineno}: {error.msg}"
        raise RecordError(f"{file}: corrupt, no JSON: {found}") from error
    except RecursionError as error:
        raise RecordError(f"{file}: corrupt, nested too deeply") from error
