"""What the trials of a run have left: records with their files, and those that can't be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from distbench.core.errors import ContentError, FormatError, RecordError
from distbench.core.serialization import decoded
from distbench.record import Record, check_format, data_files, read_json
from distbench.record.batch_reads import Shelf

RECORD_FILE = "record.json"
_FIRST_WITH_FILES = 2

T = TypeVar("T")
_reads_all: ContextVar[bool] = ContextVar("_reads_all", default=False)
"""Whether the files of every record are parsed at once."""


@dataclass(frozen=True)
class Stored:
    """A record as stored on disk."""

    record: Record
    files: data_files.Files
    """Files of its samples and tables; none in format 1, whose records contain them."""


@dataclass(frozen=True)
class Damaged:
    """A trial whose record, or a file next to it, is missing, corrupt or of another format."""

    trial: str
    """Its folder in the run's folder: ``trials/ddp-1a2b3c4d5e/0``; ``run.json``: that file is."""
    problem: str
    """File, and what is wrong with it."""
    is_sound: bool = False
    """Whether nothing is wrong but the format: another version of distbench can read it."""

    @property
    def is_trial(self) -> bool:
        """Whether it is a trial, and not the file that describes the run."""
        return "/" in self.trial

    @property
    def folder(self) -> str:
        """Folder of its kind of job in the run's folder."""
        return self.trial.split("/")[0]

    @property
    def case_id(self) -> str:
        """Id of its case, as the name of the folder says."""
        return self.trial.split("/")[1].rpartition("-")[2]

    def to_json(self) -> dict[str, str]:
        """What programs get to know."""
        return {"trial": self.trial, "problem": self.problem}


@dataclass(frozen=True)
class Contents:
    """All trials of a run that have a record, by kind of job and in the order of folder names."""

    stored: list[Stored] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """Those that can be read."""
        return [stored.record for stored in self.stored]


def damage_text(damaged: Sequence[Damaged]) -> str:
    """What is wrong with ``run.json``, how many trials can't be read and why; empty if nothing is damaged."""
    of_run = [f"{each.problem}; the records tell what the run is" for each in damaged if not each.is_trial]
    trials = [each for each in damaged if each.is_trial]
    return "; ".join([*of_run, *([_text(trials)] if trials else [])])


def _text(damaged: Sequence[Damaged]) -> str:
    worst = sorted(damaged, key=lambda trial: trial.is_sound)[0]
    what = "of another format" if worst.is_sound else "damaged"
    if len(damaged) == 1:
        return f"1 trial is {what} and left out: {worst.problem}"
    return f"{len(damaged)} trials are {what} and left out; the first: {worst.problem}"


def rereading(read: Callable[[], T]) -> T:
    """What *read* makes of the records of runs.

    Most readers need few of the files next to them, so these are parsed on first access. Where one then turns
    out not to hold what its record says, *read* is called again, with all of them parsed when the records are
    read: the trial is damaged, as with any other damage.
    """
    try:
        return read()
    except ContentError:
        token = _reads_all.set(True)
        try:
            return read()
        finally:
            _reads_all.reset(token)


def read_contents(run: Path, trials: Iterable[Path]) -> Contents:
    """Contents of the folders *trials* of the run in the folder *run*; those without a record have none."""
    contents, shelf = Contents(), Shelf()
    for folder in trials:
        try:
            stored = read_record(folder / RECORD_FILE, shelf)
            if _reads_all.get():
                data_files.load(stored.record)
            contents.stored.append(stored)
        except RecordError as error:
            # messages name files as a reader of the run finds them
            problem = str(error).replace(f"{run}/", "")
            trial = folder.relative_to(run).as_posix()
            contents.damaged.append(Damaged(trial, problem, isinstance(error, FormatError)))
    return contents


def read_record(file: Path, shelf: Shelf | None = None) -> Stored:
    """Record in *file*, whose other files are read together with those of records on the same *shelf*.

    Raises:
        RecordError: it, or a file next to it, is missing, corrupt or of another format.
    """
    # folders of the trial, its case and its kind of job: none may lead out of the run
    for place in list(file.parents)[:3]:
        if place.is_symlink():
            raise RecordError(f"{file}: {place.name} is a symbolic link, which is not followed")
    data, source = read_json(file), str(file)
    check_format(data, source)
    if data["format"] < _FIRST_WITH_FILES:
        record = Record.from_json(data, source)
        data_files.check_ranks(
            {name: len(each) for name, each in record.samples.items()}, record.case, source
        )
        return Stored(record, data_files.Files())
    described = decoded(data_files.Manifest, data, source)
    record = Record.from_json({**data, "samples": {}, "tables": {}}, source)
    data_files.check_ranks(described.samples.ranks if described.samples else {}, record.case, source)
    parquet_files = data_files.find(file.parent, described)
    samples, tables = data_files.content(parquet_files, described, shelf)
    return Stored(dataclasses.replace(record, samples=samples, tables=tables), parquet_files)
