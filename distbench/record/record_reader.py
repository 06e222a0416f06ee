"""Read all records of a run; damaged trials are listed, not fatal.

The parts of a record may have the right types but not fit together: it is from another tool, or was changed
by hand. Or distbench misreads its own: the two look alike, so ``untrusted_records`` leaves both open.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from distbench.core.errors import RecordContentError, RecordError, RecordFormatError
from distbench.core.serialization import decode
from distbench.record import Record, check_format, data_files, read_json
from distbench.record.batch_reads import BatchReaders

RECORD_FILE = "record.json"
_FIRST_PARQUET_VERSION = 2
_PACKAGE = Path(__file__).parents[1]
# exceptions that code which relies on distbench's own records raises on others
_MISFIT_ERRORS = (
    *(TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, RecursionError),
)
_ADVICE = (
    "if distbench check RUN finds no damaged file, this is a bug in distbench: please report it "
    "with this line and, if possible, the run's folder"
)

T = TypeVar("T")
_reads_all: ContextVar[bool] = ContextVar("_reads_all", default=False)
"""True: parse the files of every record at once."""


@dataclass(frozen=True)
class StoredRecord:
    """A record as stored on disk."""

    record: Record
    files: data_files.DataFiles
    """Files of its samples and tables; none in format 1, whose records contain them."""


@dataclass(frozen=True)
class DamagedTrial:
    """A trial whose record, or a file next to it, is missing, corrupt or of another format."""

    trial: str
    """Its folder in the run's folder: ``trials/ddp-1a2b3c4d5e/0``; ``run.json`` for that file."""
    problem: str
    """File and description of the damage."""
    is_other_format: bool = False
    """True if only the format is wrong: another version of distbench can read it."""

    @property
    def is_trial(self) -> bool:
        """True for a trial; False for the file that describes the run."""
        return "/" in self.trial

    @property
    def folder(self) -> str:
        """Folder of its kind of job in the run's folder."""
        return self.trial.split("/")[0]

    @property
    def case_id(self) -> str:
        """Id of its case, according to the name of the folder."""
        return self.trial.split("/")[1].rpartition("-")[2]

    def to_json(self) -> dict[str, str]:
        """The trial as plain JSON types."""
        return {"trial": self.trial, "problem": self.problem}


@dataclass(frozen=True)
class RunContents:
    """All trials of a run that have a record, by kind of job and in the order of folder names."""

    stored: list[StoredRecord] = field(default_factory=list)
    damaged: list[DamagedTrial] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """Records of the trials that can be read."""
        return [stored.record for stored in self.stored]


def damage_summary(damaged: Sequence[DamagedTrial]) -> str:
    """Summarise the damage to ``run.json`` and to trials; empty if there is none."""
    of_run = [f"{each.problem}; using the records instead" for each in damaged if not each.is_trial]
    trials = [each for each in damaged if each.is_trial]
    return "; ".join([*of_run, *([_trials_text(trials)] if trials else [])])


def _trials_text(damaged: Sequence[DamagedTrial]) -> str:
    worst = sorted(damaged, key=lambda trial: trial.is_other_format)[0]
    what = "of another format" if worst.is_other_format else "damaged"
    if len(damaged) == 1:
        return f"1 trial is {what} and skipped: {worst.problem}"
    return f"{len(damaged)} trials are {what} and skipped; for example: {worst.problem}"


def retry_eagerly(read: Callable[[], T]) -> T:
    """Call *read*; call it again with all files parsed if one does not match its record.

    Most readers need few of the files next to records, so these are parsed on first access. If one then
    does not hold what its record says, *read* is called again, with all of them parsed when the records are
    read: the trial is then treated as any damaged one.
    """
    try:
        return read()
    except RecordContentError:
        token = _reads_all.set(True)
        try:
            return read()
        finally:
            _reads_all.reset(token)


def read_contents(run: Path, trials: Iterable[Path]) -> RunContents:
    """Read the folders *trials* of the run in the folder *run*.

    Folders whose record can't be read are listed as damaged; those that disappear meanwhile are left out.
    """
    contents, shelf = RunContents(), BatchReaders()
    for folder in trials:
        try:
            stored = read_record(folder / RECORD_FILE, shelf)
            if _reads_all.get():
                data_files.load_all(stored.record)
            contents.stored.append(stored)
        except RecordError as error:
            if not os.path.lexists(folder):
                continue
            # messages name files relative to the run
            problem = str(error).replace(f"{run}/", "")
            trial = folder.relative_to(run).as_posix()
            contents.damaged.append(DamagedTrial(trial, problem, isinstance(error, RecordFormatError)))
    return contents


def read_record(file: Path, readers: BatchReaders | None = None) -> StoredRecord:
    """Read the record in *file*; its other files are read in batches with those on the same *readers*.

    Raises:
        RecordError: it, or a file next to it, is missing, corrupt or of another format.
    """
    # folders of the trial, its case and its kind of job: none may leave the run
    for place in list(file.parents)[:3]:
        if place.is_symlink():
            raise RecordError(f"{file}: {place.name} is a symbolic link, which is not followed")
    data, source = read_json(file), str(file)
    check_format(data, source)
    if data["format"] < _FIRST_PARQUET_VERSION:
        record = Record.from_json(data, source)
        data_files.check_rank_counts(
            {name: len(each) for name, each in record.samples.items()}, record.case, source
        )
        return StoredRecord(record, data_files.DataFiles())
    described = decode(data_files.FileManifest, data, source)
    record = Record.from_json({**data, "samples": {}, "tables": {}}, source)
    data_files.check_rank_counts(described.samples.ranks if described.samples else {}, record.case, source)
    parquet_files = data_files.locate_files(file.parent, described)
    samples, tables = data_files.lazy_content(parquet_files, described, readers)
    return StoredRecord(dataclasses.replace(record, samples=samples, tables=tables), parquet_files)


@contextmanager
def untrusted_records(what: str) -> Iterator[None]:
    """Convert exceptions that the body raises on inconsistent records to a RecordError about *what*.

    It names the line of distbench that failed on them, for the mistake may be there.

    Raises:
        RecordError: in place of the exception of the body.
    """
    try:
        yield
    except _MISFIT_ERRORS as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)][-1]
        place = f"{Path(own.filename).relative_to(_PACKAGE.parent)}:{own.lineno}"
        why = f"{type(error).__name__}: {error!s:.200}"
        raise RecordError(f"{what} are inconsistent: {why} (in {place}); {_ADVICE}") from error
