"""Runs on disk: every file is written to a temporary name, fsynced and renamed, so a kill tears none.

reports/<suite>-<time>-<id>/
  run.json              the resolved suite, the cases, the machine, the run's state
  suite.yaml            the suite as the user wrote it
  trials/<case>/<round>/
    record.json         result of the trial; written last: without it there was no trial
    *.parquet           its samples and tables
    trial.json, rank<r>.log, ...
  checks/, checkpoints/, collectives/, convergence/, sensitivity/, ...
                        the same for the trials of other kinds of job (``jobs``), each in its ``folder``
  prepare/              logs of building C++ ops and initial weights before the trials, and the time of layers
  scratch/              files that one trial leaves for another; removed when no longer needed
  report.html, report-lite.html, answer.json
                        the page, and the recommendation for lists of runs (``report.stored_recommendation``)
  damaged/              trials that can't be read, quarantined to be measured again (``quarantine``)
  tensorboard/, mlflow/, wandb/, pytest-benchmark/
                        exports for trackers
  progress.jsonl        events shown while it ran (``progress``)
  submitted/            if it was submitted to an engine: to which, and how (``submission``)
  .owner                the process that runs trials in it (``lock``); empty between sessions
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from distbench import __version__
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError, RecordError, UsageError
from distbench.core.job import MEASURE, JobKind, job_kind, job_kinds
from distbench.core.serialization import decode
from distbench.core.text import truncate_middle
from distbench.core.units import format_bytes
from distbench.plan import PlannedCase
from distbench.record import (
    FORMAT_VERSION,
    Record,
    check_format,
    data_files,
    lock,
    parquet,
    read_json,
)
from distbench.record.record_reader import RECORD_FILE, RunContents, read_contents, read_record
from distbench.suite import Suite
from distbench.system.files import folders, infrastructure_errors, slug, write_atomic
from distbench.system.machine import machine_facts

RUN_FILE = "run.json"
SCRIPT_KEY = "script"
"""Key of ``suite`` in ``run.json`` of a measured script, which is in no suite."""
TRACE_KEY = "trace"
"""Key of ``suite`` in ``run.json`` of traces that were read, which are of no suite."""
SUBMISSION_FOLDER = "submitted"
"""Folder of a submission to an engine (``submission``)."""
# characters of one text of a record
_MAX_TEXT = 50_000
# records, logs and the report of a small run, without the weights of a large model
MIN_FREE_BYTES = 64 << 20
"""Bytes that a run needs on its disk."""

RunState = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True)
class RunInfo:
    """Content of ``run.json``."""

    run_id: str
    suite_name: str
    version: str
    """Version of distbench."""
    created: str
    """UTC, ISO 8601."""
    state: RunState
    command: list[str]
    suite: dict[str, Any]
    """The resolved suite: with all defaults and overrides."""
    machine: dict[str, Any]
    cases: list[PlannedCase] = field(default_factory=list)

    @property
    def is_script(self) -> bool:
        """True if the run measured a script that was not a suite: ``suite`` then has its command."""
        return SCRIPT_KEY in self.suite

    @property
    def is_trace(self) -> bool:
        """True if the run keeps traces of a training: ``suite`` then has their files."""
        return TRACE_KEY in self.suite

    @property
    def has_choice(self) -> bool:
        """True if the cases are of a suite, so that one may be better than another."""
        return not (self.is_script or self.is_trace)

    @classmethod
    def create(
        cls,
        suite: Suite,
        cases: list[PlannedCase],
        command: list[str],
        machine: Mapping[str, Any] | None = None,
    ) -> RunInfo:
        """Description of a run of *suite* that is starting.

        Args:
            machine: Machine and packages, as its interpreter sees them; None: this one's.
        """
        return cls(
            run_id=new_run_id(),
            suite_name=suite.name,
            version=__version__,
            created=utc_now(),
            state="running",
            command=command,
            suite=suite.to_resolved(),
            machine=dict(machine_facts() if machine is None else machine),
            cases=cases,
        )

    def to_json(self) -> dict[str, Any]:
        """The run as plain JSON types, format number first."""
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any], source: str) -> RunInfo:
        """Parse the output of ``to_json``.

        Raises:
            RecordError: another format, or something is missing or of the wrong kind.
        """
        check_format(data, source)
        return decode(cls, data, source)


class Run:
    """A run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, out: Path, info: RunInfo, suite_text: str) -> Run:
        """Create the folder of a new run under *out* with ``run.json`` and ``suite.yaml``.

        Raises:
            UsageError: the folder can't be created, or its disk is full.
        """
        name = f"{slug(info.suite_name)}-{folder_stamp(info.created)}-{info.run_id}"
        return cls.create_at(out / name, info, suite_text)

    @classmethod
    def create_at(cls, folder: Path, info: RunInfo, suite_text: str) -> Run:
        """Create *folder* for a new run, with ``run.json`` and ``suite.yaml``.

        Raises:
            UsageError: the folder can't be created, its path is not UTF-8, or its disk is full.
        """
        run, out = cls(folder), folder.parent
        try:
            parquet.duckdb_path(folder)
            # the remains of a session that was killed before it had written run.json are empty
            (run.folder / "trials").mkdir(parents=True, exist_ok=not (run.folder / RUN_FILE).exists())
        except OSError as error:
            raise UsageError(
                f"--out {out}: can't create a folder for the run: {error.strerror}; choose another folder"
            ) from error
        if (free := shutil.disk_usage(run.folder).free) < MIN_FREE_BYTES:
            run.folder.joinpath("trials").rmdir()
            # the folder of a submitted run is not empty
            with suppress(OSError):
                run.folder.rmdir()
            raise UsageError(
                f"--out {out}: only {format_bytes(free)} free on this disk; a run needs at least "
                f"{format_bytes(MIN_FREE_BYTES)}; free some space or choose another folder"
            )
        write_text(run.folder / "suite.yaml", suite_text)
        run.write_info(info)
        return run

    @contextmanager
    def hold_lock(self) -> Iterator[lock.LockHolder | None]:
        """Lock the folder while the body runs; yield the previous holder if it was killed.

        Raises:
            UsageError: another process runs trials in it.
            InfrastructureError: the folder is not writable, or its disk is full.
        """
        with ExitStack() as stack:
            with resumable_write_errors(self.folder / lock.LOCK_FILE):
                killed = stack.enter_context(lock.lock_folder(self.folder, utc_now()))
            yield killed

    def info(self) -> RunInfo:
        """Content of ``run.json``; without a lock holder the run is not running, whatever was written last.

        Raises:
            UsageError: this is not the folder of a run.
            RecordError: the file is corrupt or of another format, or missing though there are records.
        """
        file = self.folder / RUN_FILE
        if not os.path.lexists(file):
            if self.recorded_trials():
                raise RecordError(f"{file}: missing, but records exist")
            if (self.folder / SUBMISSION_FOLDER).is_dir():
                follow = f"distbench attach {shlex.quote(str(self.folder))}"
                raise UsageError(f"{self.folder}: has not started yet; follow it with: {follow}")
            raise UsageError(f"{self.folder}: not the folder of a run ({RUN_FILE} is missing)")
        info = RunInfo.from_json(read_json(file), str(file))
        if info.state == "running" and not lock.is_locked(self.folder):
            return dataclasses.replace(info, state="interrupted")
        return info

    def write_info(self, info: RunInfo) -> None:
        """Write ``run.json``."""
        write_json(self.folder / RUN_FILE, info.to_json())

    def trial_folder(self, case: Case, round_: int, kind: str = MEASURE) -> Path:
        """Folder of one trial, which may not exist yet."""
        return self.folder / job_kind(kind).folder / f"{slug(case.name)}-{case.id}" / str(round_)

    def write_record(self, record: Record) -> None:
        """Write *record* to disk before returning.

        Raises:
            InfrastructureError: the disk is full or the folder is not writable.
        """
        folder = self.trial_folder(record.case, record.round, record.job.kind)
        with resumable_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            written = data_files.write_files(folder, record)
        write_json(folder / RECORD_FILE, _with_clipped_texts(record).to_json(written))

    def record(self, case: Case, round_: int, kind: str = MEASURE) -> Record:
        """Record of one trial.

        Raises:
            RecordError: it, or one of its files, is missing, corrupt or of another format.
        """
        return read_record(self.trial_folder(case, round_, kind) / RECORD_FILE).record

    def contents(self) -> RunContents:
        """All records of its trials, and the damaged ones."""
        return read_contents(self.folder, self.recorded_trials())

    def records(self) -> list[Record]:
        """All records of the run that can be read, by kind of job and in the order of folder names."""
        return self.contents().records

    def recorded_trials(self) -> list[Path]:
        """Folders of its trials that have a record."""
        return [folder for kind in job_kinds() for folder in self.recorded_trials_of(kind)]

    def recorded_trials_of(self, kind: JobKind) -> list[Path]:
        """Folders of its trials of *kind* that have a record."""
        every = (trial for case in folders(self.folder / kind.folder) for trial in folders(case))
        return [trial for trial in every if os.path.lexists(trial / RECORD_FILE)]


def _with_clipped_texts(record: Record) -> Record:
    """Cut the middle of texts in *record* that would be too long to be read again."""
    cut = functools.partial(truncate_middle, limit=_MAX_TEXT, whole="see the logs next to the record")
    failure = record.failure and dataclasses.replace(
        record.failure, traceback=cut(record.failure.traceback), log=cut(record.failure.log)
    )
    return dataclasses.replace(
        record,
        reason=cut(record.reason),
        degraded=cut(record.degraded),
        absent={name: cut(why) for name, why in record.absent.items()},
        failure=failure,
    )


def new_run_id() -> str:
    """A new id: eight hex digits."""
    return secrets.token_hex(4)


def utc_now() -> str:
    """Current time in UTC as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def folder_stamp(time_: str) -> str:
    """A time from ``utc_now`` as used in folder names."""
    return time_.replace("-", "").replace(":", "").partition(".")[0].replace("T", "-")


def resume_command(folder: Path) -> str:
    """Command that resumes the run in *folder*, ready to be pasted into a shell."""
    return f"distbench run --resume {shlex.quote(str(folder))}"


def report_command(folder: Path) -> str:
    """Command that writes the report of the run in *folder*, ready to be pasted into a shell."""
    return f"distbench report {shlex.quote(str(folder))}"


def write_json(file: Path, data: Any) -> None:
    """Write *data* as JSON, atomically."""
    # ASCII only: a message may contain bytes that are not UTF-8, and the file must remain readable
    write_text(file, json.dumps(data, allow_nan=True) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write *text*, atomically.

    Raises:
        InfrastructureError: the disk is full or the folder is not writable; the old file is intact.
    """
    with resumable_write_errors(file):
        write_atomic(file, text)


@contextmanager
def resumable_write_errors(file: Path) -> Iterator[None]:
    """Add the resume command to errors of writing *file*, or a file in it."""
    try:
        with infrastructure_errors(file):
            yield
    except InfrastructureError as error:
        run = next((folder for folder in file.parents if (folder / RUN_FILE).is_file()), file.parent)
        raise InfrastructureError(
            f"{error.problem}; everything stored so far is intact",
            f"free some space, then resume with: {resume_command(run)}",
        ) from error.__cause__
