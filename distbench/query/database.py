"""In-memory database of runs that answers SQL and can access nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from distbench.analysis.run import RunAnalysis
from distbench.core.errors import UsageError, did_you_mean
from distbench.query.facts import view_rows
from distbench.query.loader import RunLoader, create_table
from distbench.query.table_files import add_table
from distbench.query.tables import TABLES, VIEW_PREFIX, SqlColumn, SqlTable, view_tables
from distbench.record.parquet import first_line, replace_surrogates
from distbench.record.run_folder import Run
from distbench.views.base import all_views

_QUERY_STATEMENTS = ("SELECT", "EXPLAIN", "PRAGMA", "CALL", "MULTI")
"""Kinds of statement that only read, in DuckDB's terms; a pivot is several."""
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_NO_COLUMN = re.compile(r'column(?: named)? "(.+?)"')

T = TypeVar("T")


@dataclass(frozen=True)
class QueryResult:
    """Result of a query."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    """SQL type of each column."""
    rows: list[tuple[Any, ...]]


class Database:
    """Tables of some runs."""

    def __init__(self, runs: Iterable[Run], files: Mapping[str, Path] | None = None) -> None:
        """Read *runs*; of several, those that disappear meanwhile are left out.

        Args:
            files: Files of other tools, by the names of their tables.

        Raises:
            UsageError: one is no folder of a run, or a file is no table.
            RecordError: ``run.json`` or a Parquet file can't be read.
        """
        import duckdb

        # people paste queries: they must not reach this process, files or the network
        settings: dict[str, Any] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "temp_directory": "",
        }
        self._database = duckdb.connect(":memory:", config=settings)
        loading, self._runs = RunLoader(), list(runs)
        self._may_lack_runs = len(self._runs) > 1
        for run in self._runs:
            _unless_gone(loading.add_run, run, self._may_lack_runs)
        loading.create_tables(self._database)
        self._described, self._documented = loading.described, loading.documented
        self.damaged = loading.damaged
        """Unreadable trials of each run, which no table includes."""
        self._views = {table.name: table for table in view_tables() if table.name not in self._documented}
        self._filled: set[str] = set()
        for name, file in (files or {}).items():
            self._add_file(name, file)
        self._database.execute("set enable_external_access = false")
        self._database.execute("set lock_configuration = true")

    def _add_file(self, name: str, file: Path) -> None:
        """Create the table *name* from *file*."""
        if any(table.name == name for table in self.tables()):
            raise UsageError(f"--table {name}={file}: {name} is a table of distbench; choose another name")
        self._documented[name] = add_table(self._database, name, file)

    def query(self, sql: str) -> QueryResult:
        """Run the query *sql*.

        Raises:
            UsageError: the query is wrong; the message lists valid names.
        """
        import duckdb

        if sql != replace_surrogates(sql):
            raise UsageError("query: not valid UTF-8")
        self._fill_views(self._table_names(sql))
        try:
            self._check_is_query(sql)
            result = self._database.execute(sql)
            if result is None or result.description is None:
                raise UsageError('query: missing SQL, such as "select * from cases"')
            columns, types = zip(*((name, str(type_)) for name, type_, *_ in result.description), strict=True)
            return QueryResult(columns, types, result.fetchall())
        except duckdb.Error as error:
            raise UsageError(f"query: {self._message(error, sql)}") from error

    def _check_is_query(self, sql: str) -> None:
        """Refuse other statements: they would change the copy in memory and leave the runs as they were."""
        for statement in self._database.extract_statements(sql):
            if (kind := statement.type.name) not in _QUERY_STATEMENTS:
                raise UsageError(
                    f"query: {kind.replace('_', ' ')} is not supported, because runs are read-only; use "
                    "select, from, with, describe, show, summarize or explain"
                )

    def tables(self) -> list[SqlTable]:
        """Tables with all of their columns, documented if a record or a view describes them."""
        names = {name for (name,) in self._database.execute("show tables").fetchall()} - self._views.keys()
        every = [*TABLES, *sorted(names - TABLES.keys())]
        docs = {name: table.doc for name, table in self._documented.items()}
        unknown = "Rows that the ranks wrote to their table {}.".format
        made = [SqlTable(name, docs.get(name, unknown(name)), self._columns(name)) for name in every]
        return [*made, *self._views.values()]

    def _fill_views(self, names: set[str]) -> None:
        """Fill the tables of the views among *names*: filling all of them would take most of the time."""
        wanted = (names & self._views.keys()) - self._filled
        if not wanted:
            return
        found = [_unless_gone(RunAnalysis.read, run, self._may_lack_runs) for run in self._runs]
        analysed = [run for run in found if run]
        for name in wanted:
            view = all_views()[name.removeprefix(VIEW_PREFIX)]
            rows = [row for run in analysed for row in view_rows(run, view)]
            create_table(self._database, name, self._views[name].columns, rows)
        self._filled |= wanted

    def _columns(self, table: str) -> tuple[SqlColumn, ...]:
        documented = self._documented.get(table)
        known = {column.name: column for column in documented.columns} if documented else {}
        rows = self._database.execute(
            "select column_name, lower(data_type) from information_schema.columns "
            "where table_schema = 'main' and table_name = ? order by ordinal_position",
            [table],
        ).fetchall()
        return tuple(known.get(name) or self._column(table, name, type_) for name, type_ in rows)

    def _column(self, table: str, name: str, type_: str) -> SqlColumn:
        column = self._described.get(name, {}) if table in ("trials", "steps") else {}
        return SqlColumn(name, type_, str(column.get("doc", "")), str(column.get("unit", "")))

    def _message(self, error: Exception, sql: str) -> str:
        """Message of *error*, with the valid names if a name was wrong."""
        message, tables = first_line(error), {table.name: table for table in self.tables()}
        if missing := _NO_TABLE.search(message):
            return f"no table {missing[1]!r}; {did_you_mean(missing[1], tables)}"
        if missing := _NO_COLUMN.search(message):
            named = [tables[name] for name in sorted(self._table_names(sql)) if name in tables]
            allowed = [f"{table.name}: {', '.join(c.name for c in table.columns)}" for table in named]
            return "\n".join([message, *(f"columns of {line}" for line in allowed)])
        return message

    def _table_names(self, sql: str) -> set[str]:
        """Names of the tables in *sql*."""
        import duckdb

        try:
            return {name.lower() for name in self._database.get_table_names(sql)}
        except duckdb.Error:
            return set()


def _unless_gone(read: Callable[[Run], T], run: Run, may_be_gone: bool) -> T | None:
    """Call *read* with *run*; None if its folder has disappeared.

    Raises:
        UsageError: it can't be read, or has disappeared and *may_be_gone* is false.
    """
    try:
        return read(run)
    except UsageError:
        if run.folder.exists() or not may_be_gone:
            raise
        return None
