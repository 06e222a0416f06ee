"""Parquet files of plain values, written and read by DuckDB.

``distbench query`` needs DuckDB anyway. It imports faster than pyarrow (0.11 s versus 0.15 s) and costs a
millisecond more per small file.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.errors import RecordError

if TYPE_CHECKING:
    import duckdb

_INT64 = 1 << 63


def write(file: Path, columns: Mapping[str, Sequence[Any]], about: Mapping[str, Any]) -> None:
    """Write *columns*, equally long lists by name, with *about* as JSON in the file's metadata.

    Raises:
        OSError: it could not be written.
    """
    import duckdb

    query, values = select(columns)
    options = f"format parquet, kv_metadata {{distbench: {literal(json.dumps(about, default=str))}}}"
    try:
        _connection().execute(f"copy ({query}) to {literal(path_text(file))} ({options})", values)
    except duckdb.Error as error:
        raise OSError(0, first_line(error)) from error


def read(file: Path) -> list[list[Any]]:
    """Columns of *file*, in order.

    Raises:
        RecordError: it can't be read.
    """
    import duckdb

    try:
        # a folder named key=value is not a column
        result = _connection().execute("from read_parquet(?, hive_partitioning=false)", [path_text(file)])
        types = [str(column[1]) for column in result.description]
        rows = result.fetchall()
    except (duckdb.Error, OSError) as error:
        raise RecordError(f"{file}: corrupt: not a Parquet file: {first_line(error)}") from error
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in types]
    return [_plain(column, type_) for column, type_ in zip(columns, types, strict=True)]


def select(columns: Mapping[str, Sequence[Any]]) -> tuple[str, list[list[Any]]]:
    """SELECT statement for *columns*, and the values to bind to it."""
    typed = [_typed(values) for values in columns.values()]
    parts = [
        f"unnest(?::{type_}[]) as {name}" for name, (type_, _) in zip(unique(columns), typed, strict=True)
    ]
    return f"select {', '.join(parts)}", [values for _, values in typed]


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """*names* as quoted column names that clash neither with each other nor with those *taken*.

    DuckDB folds case and accepts no empty name. A name that would clash gets an underscore.
    """
    seen, columns = {name.casefold() for name in taken}, []
    for name in names:
        column = encodable(name).replace("\0", "") or "unnamed"
        while column.casefold() in seen:
            column += "_"
        seen.add(column.casefold())
        columns.append(quoted(column))
    return columns


def quoted(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """*text* as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def encodable(text: str) -> str:
    """*text* with a question mark for each lone surrogate, which no file can contain."""
    return text.encode(errors="replace").decode()


def first_line(error: Exception) -> str:
    """Message of *error*, without the excerpt of the query below it."""
    return str(error).partition("\n")[0]


def path_text(file: Path) -> str:
    """Path of *file* for DuckDB: in UTF-8, also where Python reads paths in another encoding (LC_ALL=C).

    Raises:
        OSError: its bytes are not UTF-8.
    """
    try:
        return os.fsencode(file.resolve()).decode()
    except UnicodeDecodeError:
        raise OSError(0, "DuckDB accepts only UTF-8 paths") from None


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb

    # one thread: the parent of a run must not take processors from the ranks that are timed
    return duckdb.connect(":memory:", config={"threads": 1})


def _typed(values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Narrowest type for *values* and null, and the values converted for it."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in known):
        # no values: the type that any other absorbs when files are read together
        return "boolean", list(values)
    if all(type(value) is int and -_INT64 <= value < _INT64 for value in known):
        return "bigint", list(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return "double", [None if value is None else float(value) for value in values]
    if all(isinstance(value, str) for value in known):
        return "varchar", [None if value is None else encodable(value) for value in values]
    return "json", [None if value is None else json.dumps(value, default=str) for value in values]


def _plain(column: list[Any], type_: str) -> list[Any]:
    if type_ != "JSON":
        return column
    return [None if value is None else json.loads(value) for value in column]
