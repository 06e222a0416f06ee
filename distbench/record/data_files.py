"""Parquet files next to a record: its samples in one, and each of its tables in another.

The record names the files and their checksums, so that a reader knows at once whether everything is there
and intact. A file is parsed on first access, because a report of a thousand records needs only a few.

samples.parquet   one row per sample: name (of the column), rank, step, value (null: unknown); the file's
                  metadata (key ``distbench``) describe the columns and name the trial
<table>.parquet   the table's rows and columns; null: unknown, or the row doesn't have that column
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from distbench.core.bounds import Bound, Name
from distbench.core.case import MOST_RANKS, Case
from distbench.core.errors import ContentError, RecordError
from distbench.record import FORMAT, Record, Row, Samples, parquet
from distbench.record.batch_reads import Shelf
from distbench.record.documented import Kind, kinds_of
from distbench.system.files import digest, slug, whole

T = TypeVar("T")

MOST_BYTES = 1 << 30
"""Of one Parquet file."""
MOST_LISTS = 2_000_000
"""Lists of samples in a record, one per column and rank: 100 columns of 20,000 ranks."""
_SAMPLES = "samples.parquet"
# names in a record are not trusted: no path leads out of its folder
_FILE_NAME = re.compile(r"[a-z0-9_+-][a-z0-9._+-]*\.parquet")


@dataclass(frozen=True)
class SamplesFile:
    """What a record says of the file of its samples."""

    file: Name
    sha256: Name
    ranks: dict[str, Annotated[int, Bound(0, MOST_RANKS)]]
    """Column -> ranks that have a list of samples, which may be empty."""


@dataclass(frozen=True)
class TableFile:
    """What a record says of the file of one of its tables."""

    file: Name | None
    """None: the table has no row."""
    sha256: Name = ""
    columns: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    """Columns that a row does not have if it is null there."""


@dataclass(frozen=True)
class Manifest:
    """What a record says of its files."""

    samples: SamplesFile | None
    tables: dict[str, TableFile]


@dataclass(frozen=True)
class Files:
    """Parquet files of one record; a table without rows has none."""

    samples: Path | None = None
    tables: dict[str, Path] = field(default_factory=dict)
    """Table name -> file."""


class Lazy(Mapping[str, T]):
    """A mapping whose values are loaded on first access; ContentError: one can't be."""

    def __init__(self, names: Iterable[str], load: Callable[[str], T]) -> None:
        self._names, self._load = dict.fromkeys(names), functools.cache(load)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._load(name)
        except RecordError as error:
            raise ContentError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write(folder: Path, record: Record) -> dict[str, Any]:
    """Write the files of *record* into *folder*; return their description, for the record.

    Raises:
        OSError: a file could not be written.
    """
    about = {
        "format": FORMAT,
        "run_id": record.run_id,
        "case": record.case.name,
        "case_id": record.case_id,
        "round": record.round,
    }
    names = _file_names(record.tables)
    return {
        "samples": _write_samples(folder / _SAMPLES, record, about),
        "tables": {
            name: _write_table(folder / names[name], rows, {**about, "table": name})
            for name, rows in record.tables.items()
        },
    }


def check_ranks(ranks: Mapping[str, int], case: Case, source: str) -> None:
    """Refuse samples of more *ranks* (by column) than *case* has: each is a list, whatever is in it.

    Raises:
        RecordError: there are too many.
    """
    for name, count in ranks.items():
        if count > case.world_size:
            problem = f"{count:,} ranks, but the world size is {case.world_size:,}"
            raise RecordError(f"{source}: samples.ranks.{name:.60}: {problem}")
    if sum(ranks.values()) > MOST_LISTS:
        raise RecordError(f"{source}: samples.ranks: more than {MOST_LISTS:,} lists")


def find(folder: Path, described: Manifest) -> Files:
    """Files in *folder* that a record refers to.

    Raises:
        RecordError: a file is missing or damaged.
    """
    samples = described.samples and _checked(folder, described.samples)
    tables = {name: _checked(folder, entry) for name, entry in described.tables.items() if entry.file}
    return Files(samples or None, tables)


def content(
    files: Files, described: Manifest, shelf: Shelf | None = None
) -> tuple[Lazy[list[list[float | None]]], Lazy[list[Row]]]:
    """Samples and tables in *files*.

    They are read together with those of other records on the same *shelf*.
    Accessing them raises ContentError if a file does not match its description.
    """
    ranks = described.samples.ranks if described.samples and files.samples else {}
    shelf = shelf or Shelf()
    if files.samples:
        shelf.samples.add(files.samples, tuple(ranks))
    for name, file in files.tables.items():
        shelf.tables.add(file, name, _texts(name, described.tables[name]))

    @functools.cache
    def samples() -> Samples:
        return _read_samples(files.samples, ranks, shelf) if files.samples else {}

    def table(name: str) -> list[Row]:
        return (
            _read_table(files.tables[name], name, described.tables[name], shelf)
            if name in files.tables
            else []
        )

    return Lazy(ranks, lambda name: samples()[name]), Lazy(described.tables, table)


def load(record: Record) -> None:
    """Parse all files of *record*, which are otherwise parsed when they are needed.

    Raises:
        ContentError: one does not match its description.
    """
    for content in (record.samples, record.tables):
        dict(content)


def _file_names(tables: Iterable[str]) -> dict[str, str]:
    """A safe, unique file name for each table."""
    taken, names = {_SAMPLES}, {}
    for table in tables:
        name = stem = slug(table)
        number = 1
        while f"{name}.parquet" in taken:
            number += 1
            name = f"{stem}-{number}"
        names[table] = f"{name}.parquet"
        taken.add(names[table])
    return names


def _write_samples(file: Path, record: Record, about: dict[str, Any]) -> dict[str, Any] | None:
    if not record.samples:
        return None
    rows = [
        (name, rank, step, value)
        for name, ranks in record.samples.items()
        for rank, steps in enumerate(ranks)
        for step, value in enumerate(steps)
    ]
    names, numbers, steps, values = ([row[i] for row in rows] for i in range(4))
    metadata = {**about, "columns": {name: record.columns.get(name, {}) for name in record.samples}}
    columns = {"name": names, "rank": numbers, "step": steps, "value": values}
    return {
        **_written(file, columns, metadata),
        # a rank without samples has no row
        "ranks": {name: len(ranks) for name, ranks in record.samples.items()},
    }


def _write_table(file: Path, rows: Sequence[Row], about: dict[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return {"file": None}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {
        **_written(file, columns, about),
        "columns": names,
        # null in one of these means that the row doesn't have that column
        "optional": [name for name in names if any(name not in row for row in rows)],
    }


def _written(file: Path, columns: Mapping[str, Sequence[Any]], about: dict[str, Any]) -> dict[str, Any]:
    with whole(file) as aside:
        parquet.write(aside, columns, about)
    return {"file": file.name, "sha256": digest(file, MOST_BYTES)}


def _checked(folder: Path, entry: SamplesFile | TableFile) -> Path:
    name = entry.file or ""
    if not _FILE_NAME.fullmatch(name):
        raise RecordError(
            f"{folder}: record.json refers to a file {name!r:.80}, which distbench would never write"
        )
    file = folder / name
    try:
        found = digest(file, MOST_BYTES)
    except FileNotFoundError as error:
        raise RecordError(f"{file}: missing, but record.json refers to it") from error
    except OSError as error:
        raise RecordError(f"{file}: can't be read: {error.strerror}") from error
    if found != entry.sha256:
        raise RecordError(f"{file}: corrupt: checksum differs from record.json")
    return file


def _read_samples(file: Path, ranks: Mapping[str, int], shelf: Shelf) -> Samples:
    samples: Samples = {name: [[] for _ in range(count)] for name, count in ranks.items()}
    lists = [*samples.values()]
    try:
        for place, rank, value, _ in shelf.samples.content(file, tuple(samples)):
            if not place or rank is None or rank < 0:
                raise IndexError("of no column or rank that it has")
            lists[place - 1][rank].append(value)
    except IndexError as error:
        raise RecordError(f"{file}: not the samples that record.json describes: {error}") from error
    return samples


def _texts(table: str, entry: TableFile) -> tuple[str, ...] | None:
    """Columns of text of *table*, if it is documented."""
    kinds = kinds_of(table)
    return tuple(column for column in entry.columns if kinds.get(column) == "text") if kinds else None


def _read_table(file: Path, name: str, entry: TableFile, shelf: Shelf) -> list[Row]:
    optional, kinds = set(entry.optional), kinds_of(name)
    columns = shelf.tables.content(file, name, _texts(name, entry))
    try:
        named = dict(zip(entry.columns, columns, strict=True))
        _refuse_other_kinds(file, named, kinds)
        return [
            {
                name: value
                for name, value in zip(entry.columns, row, strict=True)
                if value is not None or name not in optional
            }
            for row in zip(*(column.values for column in columns), strict=True)
        ]
    except ValueError as error:
        raise RecordError(f"{file}: not the table that record.json describes: {error!r}") from error


def _refuse_other_kinds(
    file: Path, columns: Mapping[str, parquet.Content], kinds: Mapping[str, Kind]
) -> None:
    for name, kind in kinds.items():
        if name in columns and not columns[name].holds(kind):
            raise RecordError(f"{file}: {name:.60}: {columns[name].type}: expected {kind}s")
