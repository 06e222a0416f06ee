"""Parquet files of plain values, written and read by DuckDB.

``distbench query`` needs DuckDB anyway. It imports faster than pyarrow (0.11 s versus 0.15 s) and costs a
millisecond more per small file.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import os
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distbench.core.errors import RecordError
from distbench.core.grouping import group_pairs
from distbench.core.serialization import replace_nonfinite

if TYPE_CHECKING:
    import duckdb

MAX_VALUES = 1 << 24
"""Maximum values in one file: a thousand steps of 500 ranks, 8 numbers in each,
with their names and places.
"""
MAX_COLUMNS = 1 << 10
MAX_TEXT = 1 << 27
"""Maximum characters of text in one file."""
MAX_CELL_TEXT = 1 << 14
"""Characters that are read of one text in a table."""
# memory that DuckDB may use to read a file, as a page of it may expand to any size; anything larger is
# refused, not spilled to a folder of the user's
_READ_SETTINGS = (("memory_limit", "512MB"), ("temp_directory", ""))
# a folder named key=value is not a column; the last column is the row's file, under a unique name
_FILE_COLUMN = "distbench file"
_READ_CLAUSE = f"from read_parquet(?, hive_partitioning = false, filename = '{_FILE_COLUMN}')"
# numbers alone, so that no text of a file has to be kept
_SAMPLE_COLUMNS = f'list_position(?, name), rank::bigint, value::double, "{_FILE_COLUMN}"'
_SCHEMA_QUERY = """select file_name, list((name, type, type_length, repetition_type, num_children,
    converted_type, logical_type))::varchar from parquet_schema(?) group by file_name"""
# DuckDB's own
_BATCH = 2048
_INT64 = 1 << 63
_TEXTS = ("VARCHAR", "JSON")
_ARRAY_CODES = {"BIGINT": "q", "DOUBLE": "d"}
SampleRows = list[tuple[Any, ...]]
"""Index of a column's name among the requested ones (from 1 on; 0: not requested), rank, value, file."""
_TYPE_NAMES = {"text": ("VARCHAR",), "number": ("BIGINT", "DOUBLE")}


@dataclass(frozen=True)
class ParquetColumn:
    """A column of a file."""

    name: str
    type: str
    """Type in DuckDB."""
    values: Sequence[Any]

    def has_type(self, kind: Literal["text", "number"]) -> bool:
        """True if its values are of that *kind*, or null; a column without any is one of booleans."""
        return self.type in _TYPE_NAMES[kind] or all(value is None for value in self.values)


def write(file: Path, columns: Mapping[str, Sequence[Any]], about: Mapping[str, Any]) -> None:
    """Write *columns*, equally long lists by name, with *about* as JSON in the file's metadata.

    Raises:
        OSError: it could not be written.
    """
    import duckdb

    query, values = select_statement(columns)
    options = f"format parquet, kv_metadata {{distbench: {quote_string(json.dumps(about, default=str))}}}"
    try:
        _connection().execute(f"copy ({query}) to {quote_string(duckdb_path(file))} ({options})", values)
    except duckdb.Error as error:
        raise _os_error(error) from error


def _os_error(error: Exception) -> OSError:
    """Convert *error* to the operating system's error, which DuckDB wraps in JSON."""
    if number := re.search(r'"errno":"(\d+)"', str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    return OSError(0, first_line(error))


def read(file: Path, texts: Sequence[str] | None = None) -> list[ParquetColumn]:
    """Columns of *file*, in order, as of ``read_tables``.

    Raises:
        RecordError: it can't be read, or holds more than any that distbench writes.
    """
    return read_tables([file], texts)[file]


def read_tables(
    files: Sequence[Path], text_columns: Sequence[str] | None = None, max_values: int = MAX_VALUES
) -> dict[Path, list[ParquetColumn]]:
    """Columns of each of *files*, in order; at most ``MAX_CELL_TEXT`` characters of a text.

    The files have one schema (``group_by_schema``).

    Args:
        text_columns: The text columns, where they are known; None: query DuckDB for them first.
        max_values: Maximum number of values in all files together.

    Raises:
        RecordError: one can't be read, or they hold more.
    """
    with _read_errors(files) as paths:
        types = dict.fromkeys(text_columns, "VARCHAR") if text_columns is not None else _types(paths)
        # a few bytes of Parquet may expand to any number of copies of a long text
        cut = [
            f"{_truncated(quote_identifier(name), type_)} as {quote_identifier(name)}"
            for name, type_ in types.items()
            if type_ in _TEXTS
        ]
        chosen = f"* replace ({', '.join(cut)})" if cut else "*"
        result = _connection(*_READ_SETTINGS).execute(f"select {chosen} {_READ_CLAUSE}", [[*paths]])
        # the last one is that of the file
        described = [(str(name), str(type_)) for name, type_, *_ in result.description][:-1]
        if len(described) > MAX_COLUMNS:
            raise ValueError(f"more than {MAX_COLUMNS:,} columns")
        rows = _fetch_limited(result, paths, max_values // max(1, len(described)))
        return {file: _columns(described, own) for file, own in _split_by_file(rows, paths).items()}


def _columns(described: Sequence[tuple[str, str]], rows: Sequence[tuple[Any, ...]]) -> list[ParquetColumn]:
    columns = zip(*rows, strict=True) if rows else [()] * len(described)
    # the last value of a row is its file
    return [
        ParquetColumn(name, type_, _compact(values, type_))
        for (name, type_), values in zip(described, columns, strict=False)
    ]


def read_samples(
    files: Sequence[Path], names: Sequence[str], max_values: int = MAX_VALUES
) -> dict[Path, SampleRows]:
    """Samples in each of *files*, which have one schema and hold at most *max_values* values together.

    Raises:
        RecordError: one can't be read, is not a file of samples, or they hold more.
    """
    with _read_errors(files) as paths:
        result = _connection(*_READ_SETTINGS).execute(
            f"select {_SAMPLE_COLUMNS} {_READ_CLAUSE}", [list(names), [*paths]]
        )
        return _split_by_file(_fetch_limited(result, paths, max_values // 4), paths)


def group_by_schema(files: Sequence[Path]) -> list[list[Path]]:
    """Group *files* by the names and types of their columns.

    Raises:
        RecordError: one can't be read.
    """
    with _read_errors(files) as paths:
        found = _connection(*_READ_SETTINGS).execute(_SCHEMA_QUERY, [[*paths]]).fetchall()
        return [*group_pairs((schema, paths[path]) for path, schema in found).values()]


def _types(paths: Mapping[str, Path]) -> dict[str, str]:
    """Type of each column of files with one schema."""
    result = _connection(*_READ_SETTINGS).execute(f"{_READ_CLAUSE} limit 0", [[*paths]])
    return {str(name): str(type_) for name, type_, *_ in result.description[:-1]}


def _split_by_file(
    rows: Iterable[tuple[Any, ...]], paths: Mapping[str, Path]
) -> dict[Path, list[tuple[Any, ...]]]:
    """Group *rows* by their file, which their last value names."""
    made: dict[Path, list[tuple[Any, ...]]] = {file: [] for file in paths.values()}
    if len(made) == 1:
        return {file: [*rows] for file in made}
    for path, own in itertools.groupby(rows, operator.itemgetter(-1)):
        made[paths[path]] += own
    return made


def _truncated(column: str, type_: str) -> str:
    if type_ == "JSON":
        # a truncated text would be invalid JSON
        return f"if(strlen({column}) > {MAX_CELL_TEXT}, error('a value is too long'), {column})"
    return f"left({column}::varchar, {MAX_CELL_TEXT})"


def _fetch_limited(
    result: duckdb.DuckDBPyConnection, paths: Mapping[str, Path], limit: int
) -> list[tuple[Any, ...]]:
    """Fetch all rows of *result*: at most *limit*, with ``MAX_TEXT`` characters of text.

    Raises:
        ValueError: there are more.
    """
    rows = result.fetchmany(_BATCH)
    if len(rows) < _BATCH:
        return rows
    # the file itself states the count; several files are each read again alone if they hold more
    count = _row_count(paths) if len(paths) == 1 else 0
    size = 0
    while max(count, len(rows)) <= limit and (batch := result.fetchmany(_BATCH)):
        rows += batch
        size += sum(len(value) for row in batch for value in row[:-1] if type(value) is str)
        if size > MAX_TEXT:
            raise ValueError(f"more than {MAX_TEXT:,} characters of text")
    if (count := max(count, len(rows))) > limit:
        raise ValueError(f"{count:,} rows; more than {limit:,} are not read")
    return rows


def _row_count(paths: Mapping[str, Path]) -> int:
    # a cursor, because the rest of a result is still to be fetched
    counting = _connection(*_READ_SETTINGS).cursor()
    ((count,),) = counting.execute(f"select count(*) {_READ_CLAUSE}", [[*paths]]).fetchall()
    return int(count)


@contextmanager
def _read_errors(files: Sequence[Path]) -> Iterator[dict[str, Path]]:
    """Yield *files* by their paths for DuckDB; convert errors in the body to RecordError."""
    import duckdb

    try:
        yield {duckdb_path(file): file for file in files}
    except (duckdb.Error, OSError) as error:
        raise RecordError(f"{files[0]}: corrupt: not a Parquet file: {first_line(error)}") from error
    # invalid JSON text in a column; a path that DuckDB takes for a pattern
    except (ValueError, RecursionError, KeyError) as error:
        raise RecordError(f"{files[0]}: corrupt: {error}") from error


def select_statement(columns: Mapping[str, Sequence[Any]]) -> tuple[str, list[list[Any]]]:
    """SELECT statement for *columns*, and the values to bind to it."""
    typed = [_infer_type(values) for values in columns.values()]
    parts = [
        f"unnest(?::{type_}[]) as {name}"
        for name, (type_, _) in zip(unique_columns(columns), typed, strict=True)
    ]
    return f"select {', '.join(parts)}", [values for _, values in typed]


def unique_columns(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """*names* as quoted column names that clash neither with each other nor with those *taken*.

    DuckDB folds case and accepts no empty name. A name that would clash gets an underscore.
    """
    seen, columns = {name.casefold() for name in taken}, []
    for name in names:
        column = replace_surrogates(name).replace("\0", "") or "unnamed"
        while column.casefold() in seen:
            column += "_"
        seen.add(column.casefold())
        columns.append(quote_identifier(column))
    return columns


def quote_identifier(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_string(text: str) -> str:
    """*text* as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def replace_surrogates(text: str) -> str:
    """*text* with a question mark for each lone surrogate, which no file can contain."""
    return text.encode(errors="replace").decode()


def first_line(error: Exception) -> str:
    """Message of *error*, without the excerpt of the query below it."""
    return str(error).partition("\n")[0]


def duckdb_path(file: Path) -> str:
    """Path of *file* for DuckDB: in UTF-8, also where Python reads paths in another encoding (LC_ALL=C).

    Raises:
        OSError: its bytes are not UTF-8.
    """
    try:
        return os.fsencode(file.absolute()).decode()
    except UnicodeDecodeError:
        raise OSError(0, "DuckDB accepts only UTF-8 paths") from None


@functools.cache
def _connection(*settings: tuple[str, str]) -> duckdb.DuckDBPyConnection:
    import duckdb

    # one thread: the parent of a run must not take processors from the ranks that are timed
    return duckdb.connect(":memory:", config={"threads": 1, **dict(settings)})


def _infer_type(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Narrowest type for *values* and null, and the values converted to it."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in known):
        # no values: the type that any other absorbs when files are read together
        return "boolean", list(values)
    if all(type(value) is int and -_INT64 <= value < _INT64 for value in known):
        return "bigint", list(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return "double", [None if value is None else float(value) for value in values]
    if all(isinstance(value, str) for value in known):
        return "varchar", [None if value is None else replace_surrogates(value) for value in values]
    return "json", [None if value is None else _encode_json(value) for value in values]


def _encode_json(value: Any) -> str:
    return replace_surrogates(json.dumps(replace_nonfinite(value), default=str, ensure_ascii=False))


def _compact(values: tuple[Any, ...], type_: str) -> Sequence[Any]:
    """*values* in little memory, as the tables of thousands of records are kept; JSON is decoded."""
    if type_ == "JSON":
        return [None if value is None else json.loads(value) for value in values]
    if type_ == "VARCHAR":
        # most are one of a few words
        return [None if value is None else sys.intern(value) for value in values]
    if type_ in _ARRAY_CODES and None not in values:
        return array(_ARRAY_CODES[type_], values)
    return values
