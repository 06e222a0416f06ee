"""Parquet files next to a record: its samples in one, and each of its tables in another.

The record names the files and their checksums, so that a reader knows at once whether everything is there
and intact. A file is parsed on first access, because a report of a thousand records needs only a few.

samples.parquet   one row per sample: name (of the column), rank, step, value (null: unknown); the file's
                  metadata (key ``distbench``) describe the columns and name the trial
<table>.parquet   the table's rows and columns; null: unknown, or the row doesn't have that column
"""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from distbench.errors import RecordError
from distbench.files import slug, whole
from distbench.record import FORMAT, Record, Row, Samples, parquet

T = TypeVar("T")

_SAMPLES = "samples.parquet"
# names in a record are not trusted: no path leads out of its folder
_FILE_NAME = re.compile(r"[a-z0-9_+-][a-z0-9._+-]*\.parquet")


@dataclass(frozen=True)
class Files:
    """Parquet files of one record; a table without rows has none."""

    samples: Path | None = None
    tables: dict[str, Path] = field(default_factory=dict)
    """Table name -> file."""


class Lazy(Mapping[str, T]):
    """A mapping whose values are loaded on first access."""

    def __init__(self, names: Iterable[str], load: Callable[[str], T]) -> None:
        self._names, self._load = dict.fromkeys(names), functools.cache(load)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

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


def find(folder: Path, data: Mapping[str, Any], source: str) -> Files:
    """Files in *folder* that *data*, a record as JSON, refers to.

    Raises:
        RecordError: a file is missing or damaged, or *data* is not such a record.
    """
    try:
        samples = data["samples"] and _checked(folder, data["samples"])
        tables = {name: _checked(folder, entry) for name, entry in data["tables"].items() if entry["file"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{source}: not a readable record: {error!r}") from error
    return Files(samples or None, tables)


def content(files: Files, data: Mapping[str, Any]) -> dict[str, Any]:
    """Samples and tables in *files*, to replace the file names in *data*.

    Accessing them raises RecordError if a file does not match its description in *data*.
    """

    @functools.cache
    def samples() -> Samples:
        return _read_samples(files.samples, data["samples"]["ranks"]) if files.samples else {}

    def table(name: str) -> list[Row]:
        return _read_table(files.tables[name], data["tables"][name]) if name in files.tables else []

    columns = data["samples"]["ranks"] if files.samples else ()
    return {"samples": Lazy(columns, lambda name: samples()[name]), "tables": Lazy(data["tables"], table)}


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
    return {"file": file.name, "sha256": _digest(file)}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _checked(folder: Path, entry: Mapping[str, Any]) -> Path:
    name = str(entry["file"])
    if not _FILE_NAME.fullmatch(name):
        raise RecordError(
            f"{folder}: record.json refers to a file {name!r}, which distbench would never write"
        )
    file = folder / name
    try:
        digest = _digest(file)
    except FileNotFoundError as error:
        raise RecordError(f"{file}: missing, but record.json refers to it") from error
    except OSError as error:
        raise RecordError(f"{file}: can't be read: {error.strerror}") from error
    if digest != entry["sha256"]:
        raise RecordError(f"{file}: corrupt: checksum differs from record.json")
    return file


def _read_samples(file: Path, ranks: Mapping[str, int]) -> Samples:
    try:
        samples: Samples = {name: [[] for _ in range(count)] for name, count in ranks.items()}
        for name, rank, _, value in zip(*parquet.read(file), strict=True):
            samples[name][rank].append(value)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"{file}: not the samples that record.json describes: {error!r}") from error
    return samples


def _read_table(file: Path, entry: Mapping[str, Any]) -> list[Row]:
    try:
        optional = set(entry["optional"])
        return [
            {
                name: value
                for name, value in zip(entry["columns"], row, strict=True)
                if value is not None or name not in optional
            }
            for row in zip(*parquet.read(file), strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{file}: not the table that record.json describes: {error!r}") from error
