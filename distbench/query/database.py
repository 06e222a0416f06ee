"""An in-memory database of runs that answers SQL and can reach nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distbench.errors import UsageError, did_you_mean
from distbench.parquet import encodable, first_line
from distbench.query.loading import Loading
from distbench.query.tables import TABLES, Column, Table
from distbench.store import Run

_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_NO_COLUMN = re.compile(r'column(?: named)? "(.+?)"')


@dataclass(frozen=True)
class Answer:
    """What a query gave."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    """Types of SQL, of each column."""
    rows: list[tuple[Any, ...]]


class Database:
    """The tables of some runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Read *runs*.

        Raises:
            UsageError: one is no folder of a run.
            RecordError: a run, a record or a file beside it can't be read.
        """
        import duckdb

        # a query is text that people paste: nothing of this process, no file and no network is in its reach
        settings: dict[str, Any] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "temp_directory": "",
        }
        self._database = duckdb.connect(":memory:", config=settings)
        loading = Loading()
        for run in runs:
            loading.gather(run)
        loading.fill(self._database)
        self._described = loading.described
        self._database.execute("set enable_external_access = false")
        self._database.execute("set lock_configuration = true")

    def ask(self, sql: str) -> Answer:
        """Return the answer to *sql*.

        Raises:
            UsageError: the query is wrong; the message says what there is instead.
        """
        import duckdb

        if sql != encodable(sql):
            raise UsageError("query: it holds bytes that are no UTF-8")
        try:
            found = self._database.execute(sql)
            if found is None or found.description is None:
                raise UsageError('query: there is none; try "select * from cases"')
            columns, types = zip(*((column[0], str(column[1])) for column in found.description), strict=True)
            return Answer(columns, types, found.fetchall())
        except duckdb.Error as error:
            raise UsageError(f"query: {self._told(error, sql)}") from error

    def tables(self) -> list[Table]:
        """Return the tables with all of their columns, documented where anybody has."""
        found = {name: self._columns(name) for (name,) in self._database.execute("show tables").fetchall()}
        order = [*TABLES, *sorted(found.keys() - TABLES.keys())]
        return [Table(name, _doc(name), found[name]) for name in order]

    def _columns(self, table: str) -> tuple[Column, ...]:
        known = {column.name: column for column in TABLES[table].columns} if table in TABLES else {}
        rows = self._database.execute(
            "select column_name, lower(data_type) from information_schema.columns "
            "where table_schema = 'main' and table_name = ? order by ordinal_position",
            [table],
        ).fetchall()
        return tuple(known.get(name) or self._column(table, name, type_) for name, type_ in rows)

    def _column(self, table: str, name: str, type_: str) -> Column:
        told = self._described.get(name, {}) if table in ("trials", "steps") else {}
        return Column(name, type_, str(told.get("doc", "")), str(told.get("unit", "")))

    def _told(self, error: Exception, sql: str) -> str:
        """Return what *error* says, with what there is where a name was wrong."""
        message, tables = first_line(error), {table.name: table for table in self.tables()}
        if missing := _NO_TABLE.search(message):
            return f"no table {missing[1]!r}; {did_you_mean(missing[1], tables)}"
        if missing := _NO_COLUMN.search(message):
            named = [tables[name] for name in sorted(self._named(sql)) if name in tables]
            allowed = [f"{table.name}: {', '.join(c.name for c in table.columns)}" for table in named]
            return "\n".join([message, *(f"columns of {line}" for line in allowed)])
        return message

    def _named(self, sql: str) -> set[str]:
        """Return the tables that *sql* names."""
        import duckdb

        try:
            return {name.lower() for name in self._database.get_table_names(sql)}
        except duckdb.Error:
            return set()


def _doc(name: str) -> str:
    return TABLES[name].doc if name in TABLES else f"Rows that the metric left in its table {name}."
