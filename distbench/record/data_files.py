"""Parquet files next to a record: its samples in one, and each of its tables in another.

The record names the files and their checksums, so that a reader knows at once if everything is there and
intact. A file is parsed on first access, because a report of a thousand records needs only a few.

samples.parquet   one row per sample: name (of the column), rank, step, value (null: unknown); the file's
                  metadata (key ``distbench``) describe the columns and name the trial
<table>.parquet   the table's rows and columns; null: unknown, or the row doesn't have that column
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from distbench.core import registry
from distbench.core.bounds import Bound, Name
from distbench.core.case import MAX_WORLD_SIZE, Case
from distbench.core.columns import TableColumn
from distbench.core.errors import RecordContentError, RecordError
from distbench.record import FORMAT_VERSION, Record, RecordRow, Samples, parquet
from distbench.record.batch_reads import BatchReaders
from distbench.system.files import atomic_path, sha256_bounded, slug

T = TypeVar("T")
ColumnType = Literal["text", "number"]

MAX_FILE_BYTES = 1 << 30
"""Size limit of one Parquet file."""
MAX_SAMPLE_LISTS = 2_000_000
"""Maximum lists of samples in a record, one per column and rank: 100 columns of 20,000 ranks."""
_SAMPLES = "samples.parquet"
_RANK_COLUMN = TableColumn("rank", "bigint", "Rank, from 0 on.")
# names in a record are not trusted: no path may leave its folder
_FILE_NAME = re.compile(r"[a-z0-9_+-][a-z0-9._+-]*\.parquet")


@dataclass(frozen=True)
class SamplesEntry:
    """Entry of the samples file in a record."""

    file: Name
    sha256: Name
    ranks: dict[str, Annotated[int, Bound(0, MAX_WORLD_SIZE)]]
    """Column -> ranks that have a list of samples, which may be empty."""


@dataclass(frozen=True)
class TableEntry:
    """Entry of a table file in a record."""

    file: Name | None
    """Name of the file; None: the table has no row."""
    sha256: Name = ""
    columns: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    """Columns that are missing from a row if they are null there."""


@dataclass(frozen=True)
class FileManifest:
    """The files of a record, as record.json names them."""

    samples: SamplesEntry | None
    tables: dict[str, TableEntry]


@dataclass(frozen=True)
class DataFiles:
    """Parquet files of one record; a table without rows has none."""

    samples: Path | None = None
    tables: dict[str, Path] = field(default_factory=dict)
    """Table name -> file."""


class LazyMapping(Mapping[str, T]):
    """A mapping whose values are loaded on access.

    Access raises RecordContentError if a value can't be loaded.
    """

    def __init__(self, names: Iterable[str], load: Callable[[str], T]) -> None:
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._load(name)
        except RecordError as error:
            raise RecordContentError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write_files(folder: Path, record: Record) -> dict[str, Any]:
    """Write the files of *record* into *folder*; return their description, for the record.

    Raises:
        OSError: a file could not be written.
    """
    about = {
        "format": FORMAT_VERSION,
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


def check_rank_counts(ranks: Mapping[str, int], case: Case, source: str) -> None:
    """Refuse samples of more *ranks* (by column) than *case* has: each takes a list, even if empty.

    Raises:
        RecordError: there are too many.
    """
    for name, count in ranks.items():
        if count > case.world_size:
            problem = f"{count:,} ranks, but the world size is {case.world_size:,}"
            raise RecordError(f"{source}: samples.ranks.{name:.60}: {problem}")
    if sum(ranks.values()) > MAX_SAMPLE_LISTS:
        raise RecordError(f"{source}: samples.ranks: more than {MAX_SAMPLE_LISTS:,} lists")


def locate_files(folder: Path, manifest: FileManifest) -> DataFiles:
    """Files in *folder* that a record refers to.

    Raises:
        RecordError: a file is missing or damaged.
    """
    samples = manifest.samples and _verified_path(folder, manifest.samples)
    tables = {name: _verified_path(folder, entry) for name, entry in manifest.tables.items() if entry.file}
    return DataFiles(samples or None, tables)


def lazy_content(
    files: DataFiles, manifest: FileManifest, readers: BatchReaders | None = None
) -> tuple[LazyMapping[list[list[float | None]]], LazyMapping[list[RecordRow]]]:
    """Samples and tables in *files*.

    They are read together with those of other records on the same *readers*.
    Accessing them raises RecordContentError if a file does not match its description.
    """
    ranks = manifest.samples.ranks if manifest.samples and files.samples else {}
    readers = readers or BatchReaders()
    if files.samples:
        readers.samples.add(files.samples, tuple(ranks))
    for name, file in files.tables.items():
        readers.tables.add(file, name, _text_columns(name, manifest.tables[name]))

    @functools.cache
    def samples() -> Samples:
        return _read_samples(files.samples, ranks, readers) if files.samples else {}

    @functools.cache
    def columns(name: str) -> Mapping[str, parquet.ParquetColumn]:
        return _read_columns(files.tables[name], name, manifest.tables[name], readers)

    def table(name: str) -> list[RecordRow]:
        if name not in files.tables:
            return []
        file, entry = files.tables[name], manifest.tables[name]
        return readers.recent_rows.get(file, lambda: _rows(file, columns(name), entry))

    return LazyMapping(ranks, lambda name: samples()[name]), LazyMapping(manifest.tables, table)


def load_all(record: Record) -> None:
    """Parse all files of *record*, which are otherwise parsed on first access.

    Raises:
        RecordContentError: one does not match its description.
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
        **_write_file(file, columns, metadata),
        # a rank without samples has no row
        "ranks": {name: len(ranks) for name, ranks in record.samples.items()},
    }


def _write_table(file: Path, rows: Sequence[RecordRow], about: dict[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return {"file": None}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {
        **_write_file(file, columns, about),
        "columns": names,
        # null in one of these means that the row doesn't have that column
        "optional": [name for name in names if any(name not in row for row in rows)],
    }


def _write_file(file: Path, columns: Mapping[str, Sequence[Any]], about: dict[str, Any]) -> dict[str, Any]:
    with atomic_path(file) as aside:
        parquet.write(aside, columns, about)
    return {"file": file.name, "sha256": sha256_bounded(file, MAX_FILE_BYTES)}


def _verified_path(folder: Path, entry: SamplesEntry | TableEntry) -> Path:
    name = entry.file or ""
    if not _FILE_NAME.fullmatch(name):
        raise RecordError(
            f"{folder}: record.json refers to a file {name!r:.80}, which distbench would never write"
        )
    file = folder / name
    try:
        found = sha256_bounded(file, MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise RecordError(f"{file}: missing, but record.json refers to it") from error
    except OSError as error:
        raise RecordError(f"{file}: can't be read: {error.strerror}") from error
    if found != entry.sha256:
        raise RecordError(f"{file}: corrupt: checksum differs from record.json")
    return file


def _read_samples(file: Path, ranks: Mapping[str, int], readers: BatchReaders) -> Samples:
    samples: Samples = {name: [[] for _ in range(count)] for name, count in ranks.items()}
    lists = [*samples.values()]
    try:
        for place, rank, value, _ in readers.samples.read(file, tuple(samples)):
            if not place or rank is None or rank < 0:
                raise IndexError("of no column or rank that it has")
            lists[place - 1][rank].append(value)
    except IndexError as error:
        raise RecordError(f"{file}: not the samples that record.json describes: {error}") from error
    return samples


@functools.cache
def _column_types(table: str) -> Mapping[str, ColumnType]:
    """Types of the non-null values in the documented columns of *table*; empty for an unknown table."""
    plugins = (*registry.built_in_plugins("metrics").values(), *registry.built_in_plugins("jobs").values())
    spec = {spec.name: spec for plugin in plugins for spec in plugin.tables}.get(table)
    columns = (*spec.columns, _RANK_COLUMN) if spec else ()
    return {column.name: "text" if column.type == "varchar" else "number" for column in columns}


def _text_columns(table: str, entry: TableEntry) -> tuple[str, ...] | None:
    """Text columns of *table*, if it is documented."""
    kinds = _column_types(table)
    return tuple(column for column in entry.columns if kinds.get(column) == "text") if kinds else None


def _read_columns(
    file: Path, name: str, entry: TableEntry, readers: BatchReaders
) -> Mapping[str, parquet.ParquetColumn]:
    columns = readers.tables.read(file, name, _text_columns(name, entry))
    try:
        named = dict(zip(entry.columns, columns, strict=True))
    except ValueError as error:
        raise RecordError(f"{file}: not the table that record.json describes: {error!r}") from error
    _check_column_types(file, named, _column_types(name))
    return named


def _rows(file: Path, columns: Mapping[str, parquet.ParquetColumn], entry: TableEntry) -> list[RecordRow]:
    names, optional = tuple(columns), set(entry.optional)
    try:
        rows = zip(*(column.values for column in columns.values()), strict=True)
        if not optional:
            return [dict(zip(names, row, strict=True)) for row in rows]
        return [
            {
                name: value
                for name, value in zip(names, row, strict=True)
                if value is not None or name not in optional
            }
            for row in rows
        ]
    except ValueError as error:
        raise RecordError(f"{file}: not the table that record.json describes: {error!r}") from error


def _check_column_types(
    file: Path, columns: Mapping[str, parquet.ParquetColumn], kinds: Mapping[str, ColumnType]
) -> None:
    for name, kind in kinds.items():
        if name in columns and not columns[name].has_type(kind):
            raise RecordError(f"{file}: {name:.60}: {columns[name].type}: expected {kind}s")
