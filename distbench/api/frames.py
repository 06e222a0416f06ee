"""Tables as data frames of pandas or polars, as Arrow tables, or as plain records."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core.errors import UsageError, did_you_mean
from distbench.query import QueryResult
from distbench.tables.table import Table

LIBRARIES = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}
"""Form -> library that makes it, in the order in which an unnamed form is chosen."""
RECORDS = "records"


@dataclass(frozen=True)
class ColumnTypes:
    """A type of SQL in each library."""

    pandas: str
    """Nullable, so that an absent number is no zero and makes no integer a float."""
    polars: str
    arrow: str


_TYPES = {
    "VARCHAR": ColumnTypes("string", "String", "string"),
    "JSON": ColumnTypes("string", "String", "string"),
    "DOUBLE": ColumnTypes("float64", "Float64", "float64"),
    "BIGINT": ColumnTypes("Int64", "Int64", "int64"),
    "BOOLEAN": ColumnTypes("boolean", "Boolean", "bool_"),
    "TIMESTAMP": ColumnTypes("datetime64[us]", "Datetime", "timestamp"),
}
"""SQL type -> that of each library; a library infers the type of others from the values."""


def query_frame(result: QueryResult, form: str | None) -> Any:
    """Rows of *result* as *form*.

    Raises:
        UsageError: no such form, or its library is not installed.
    """
    return _make(result.columns, result.types, result.rows, form)


def table_frame(table: Table, form: str | None) -> Any:
    """Rows of *table* for programs as *form*; an absent value is null.

    Raises:
        UsageError: no such form, or its library is not installed.
    """
    rows = [tuple(record.values()) for record in table.records()]
    names, types = [each.name for each in table.fields], [each.type.upper() for each in table.fields]
    return _make(names, types, rows, form)


def _make(names: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]], form: str | None) -> Any:
    form = check_form(form)
    if form == RECORDS:
        return [dict(zip(names, row, strict=True)) for row in rows]
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return _MAKERS[form](names, [_TYPES.get(each) for each in types], [list(column) for column in columns])


def check_form(form: str | None) -> str:
    """Return *form*, or for None the first one whose library is installed.

    Raises:
        UsageError: no such form, or its library is not installed.
    """
    if form is None:
        installed = (each for each, library in LIBRARIES.items() if _is_installed(library))
        if (chosen := next(installed, None)) is None:
            raise UsageError(
                "as_: none of pandas, polars and pyarrow is installed; install one, "
                f"or use as_={RECORDS!r} for a list of mappings"
            )
        return chosen
    if form not in (*LIBRARIES, RECORDS):
        raise UsageError(f"as_ = {form!r}: {did_you_mean(form, [*LIBRARIES, RECORDS])}")
    if form != RECORDS and not _is_installed(LIBRARIES[form]):
        library = LIBRARIES[form]
        raise UsageError(f"as_ = {form!r}: needs {library}; install it with: pip install {library}")
    return form


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _pandas(names: Sequence[str], types: Sequence[ColumnTypes | None], columns: list[list[Any]]) -> Any:
    pandas = importlib.import_module("pandas")
    return pandas.DataFrame(
        {
            name: pandas.Series(values, dtype=type_.pandas if type_ else "object")
            for name, type_, values in zip(names, types, columns, strict=True)
        }
    )


def _polars(names: Sequence[str], types: Sequence[ColumnTypes | None], columns: list[list[Any]]) -> Any:
    polars = importlib.import_module("polars")
    return polars.DataFrame(
        [
            polars.Series(name, values, dtype=getattr(polars, type_.polars) if type_ else None)
            for name, type_, values in zip(names, types, columns, strict=True)
        ]
    )


def _arrow(names: Sequence[str], types: Sequence[ColumnTypes | None], columns: list[list[Any]]) -> Any:
    arrow = importlib.import_module("pyarrow")
    made = {"timestamp": lambda: arrow.timestamp("us")}
    arrays = [
        arrow.array(values, made.get(type_.arrow, getattr(arrow, type_.arrow))() if type_ else None)
        for type_, values in zip(types, columns, strict=True)
    ]
    return arrow.table(arrays, names=list(names))


_MAKERS: dict[str, Callable[..., Any]] = {"pandas": _pandas, "polars": _polars, "arrow": _arrow}
