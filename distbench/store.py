"""Runs on disk. Every file is written aside, fsynced and renamed, so a kill leaves no torn file.

reports/<suite>-<time>-<id>/
  run.json              the resolved suite, the cases, the machine, how the run ended
  suite.yaml            the suite as the user wrote it
  trials/<case>/<round>/
    record.json         what came of the trial; written last: without it there was no trial
    *.parquet           its samples and tables
    trial.json, rank<r>.log, ...
  checks/, checkpoints/ the same of trials that do something else than measuring (``job.FOLDERS``)
  report.html
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from distbench import __version__, beside, env
from distbench.case import Case
from distbench.errors import InfrastructureError, RecordError, UsageError
from distbench.files import slug, write_whole
from distbench.job import FOLDERS
from distbench.plan import Planned
from distbench.record import FORMAT, Record, check_format, read_json
from distbench.spec import Suite
from distbench.units import bytes_text

_RUN_FILE = "run.json"
_RECORD_FILE = "record.json"
_FIRST_WITH_FILES = 2
# records, logs and the report of a small run; the weights of a large model come on top
_LEAST_FREE = 64 << 20

State = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True)
class RunInfo:
    """What ``run.json`` holds."""

    run_id: str
    suite_name: str
    version: str
    """Version of distbench."""
    created: str
    """UTC, ISO 8601."""
    state: State
    command: list[str]
    suite: dict[str, Any]
    """The suite as resolved: every default decided, every override applied."""
    machine: dict[str, Any]
    cases: list[Planned] = field(default_factory=list)

    @classmethod
    def begun(
        cls, suite: Suite, cases: list[Planned], command: list[str], machine: Mapping[str, Any] | None = None
    ) -> RunInfo:
        """Return what is known of a run of *suite* when it begins.

        Args:
            machine: What its interpreter tells of itself and the machine; None: this one.
        """
        return cls(
            run_id=new_run_id(),
            suite_name=suite.name,
            version=__version__,
            created=utc_now(),
            state="running",
            command=command,
            suite=suite.resolved(),
            machine=dict(env.describe() if machine is None else machine),
            cases=cases,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain JSON types, with its format number first."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any], source: str) -> RunInfo:
        """Return the run that ``to_json`` described.

        Raises:
            RecordError: another format, or something is missing or of the wrong kind.
        """
        check_format(data, source)
        plain = {k: v for k, v in data.items() if k != "format"}
        try:
            plain["cases"] = [
                Planned(Case.from_json(item["case"]), item["problem"]) for item in plain["cases"]
            ]
            return cls(**plain)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{source}: not a readable run: {error!r}") from error


class Run:
    """A run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, out: Path, info: RunInfo, suite_text: str) -> Run:
        """Make the folder of a new run under *out* and write what is known.

        Raises:
            UsageError: the folder can't be made, or its disk is full.
        """
        return cls.made_at(
            out / f"{slug(info.suite_name)}-{stamp_of(info.created)}-{info.run_id}", info, suite_text
        )

    @classmethod
    def made_at(cls, folder: Path, info: RunInfo, suite_text: str) -> Run:
        """Make *folder*, that of a new run, and write what is known.

        Raises:
            UsageError: the folder can't be made, or its disk is full.
        """
        run, out = cls(folder), folder.parent
        try:
            (run.folder / "trials").mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"--out {out}: can't make a folder for the run: {error.strerror}; "
                "choose a folder that you may write to"
            ) from error
        if (free := shutil.disk_usage(run.folder).free) < _LEAST_FREE:
            run.folder.joinpath("trials").rmdir()
            run.folder.rmdir()
            raise UsageError(
                f"--out {out}: {bytes_text(free)} free on this disk; a run needs {bytes_text(_LEAST_FREE)}"
                " at least; make room or choose another folder"
            )
        write_text(run.folder / "suite.yaml", suite_text)
        run.write_info(info)
        return run

    def info(self) -> RunInfo:
        """Return what ``run.json`` holds.

        Raises:
            UsageError: this is no folder of a run.
            RecordError: the file is corrupt or of another format.
        """
        file = self.folder / _RUN_FILE
        if not file.is_file():
            raise UsageError(f"{self.folder}: no run here ({_RUN_FILE} is missing)")
        return RunInfo.from_json(read_json(file), str(file))

    def write_info(self, info: RunInfo) -> None:
        """Write ``run.json``."""
        write_json(self.folder / _RUN_FILE, info.to_json())

    def trial_folder(self, case: Case, round_: int, kind: str = "measure") -> Path:
        """Return the folder of one trial (not made yet)."""
        return self.folder / FOLDERS[kind] / f"{slug(case.name)}-{case.id}" / str(round_)

    def write_record(self, record: Record) -> None:
        """Write *record*; when this returns it is on the disk.

        Raises:
            InfrastructureError: the disk is full or the folder not writable.
        """
        folder = self.trial_folder(record.case, record.round, record.job.kind)
        folder.mkdir(parents=True, exist_ok=True)
        with _told(folder):
            files = beside.write(folder, record)
        write_json(folder / _RECORD_FILE, record.to_json(files))

    def record(self, case: Case, round_: int, kind: str = "measure") -> Record:
        """Return the record of one trial.

        Raises:
            RecordError: it, or a file of it, is missing, corrupt or of another format.
        """
        return read_record(self.trial_folder(case, round_, kind) / _RECORD_FILE).record

    def records(self) -> Iterator[Record]:
        """Yield all records of the run, kind by kind of their jobs, in the order of folder names.

        Raises:
            RecordError: a record, or a file of it, is missing, corrupt or of another format.
        """
        return (stored.record for kind in FOLDERS for stored in self.stored(kind))

    def stored(self, kind: str) -> Iterator[Stored]:
        """Yield all records of jobs of *kind* with their files, in the order of folder names.

        Raises:
            RecordError: a record, or a file of it, is missing, corrupt or of another format.
        """
        return map(read_record, sorted(self.folder.glob(f"{FOLDERS[kind]}/*/*/{_RECORD_FILE}")))


@dataclass(frozen=True)
class Stored:
    """A record as it lies on the disk."""

    record: Record
    files: beside.Files
    """Where its samples and tables are; none in format 1, whose records hold them."""


def read_record(file: Path) -> Stored:
    """Return the record in *file*.

    Raises:
        RecordError: it, or a file beside it, is missing, corrupt or of another format.
    """
    data, source = read_json(file), str(file)
    check_format(data, source)
    if data["format"] < _FIRST_WITH_FILES:
        return Stored(Record.from_json(data, source), beside.Files())
    files = beside.find(file.parent, data, source)
    return Stored(Record.from_json({**data, **beside.content(files, data)}, source), files)


def new_run_id() -> str:
    """Return a fresh id: eight hex digits."""
    return secrets.token_hex(4)


def utc_now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def stamp_of(time_: str) -> str:
    """Return a time of ``utc_now`` as it stands in the names of folders."""
    return time_.replace("-", "").replace(":", "").partition(".")[0].replace("T", "-")


def write_json(file: Path, data: Any) -> None:
    """Write *data* as JSON, whole or not at all."""
    # ASCII only: a message may hold bytes that are no UTF-8, and the file must be readable again
    write_text(file, json.dumps(data, allow_nan=True) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write *text*, whole or not at all.

    Raises:
        InfrastructureError: the disk is full or the folder not writable; the old file stands.
    """
    with _told(file):
        write_whole(file, text)


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Say what to do when *file*, or one in it, can't be written."""
    try:
        yield
    except OSError as error:
        raise unwritable(file, error) from error


def unwritable(file: Path, error: OSError) -> InfrastructureError:
    """Return what to raise when *file*, in the folder of a run, could not be written."""
    return InfrastructureError(
        f"{file}: can't be written: {error.strerror}; what was stored before is whole. "
        f"Make room, then go on with: distbench run --resume {_run_of(file)}"
    )


def _run_of(file: Path) -> Path:
    return next((p for p in file.parents if (p / _RUN_FILE).is_file()), file.parent)
