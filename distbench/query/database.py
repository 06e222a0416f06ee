"""In-memory database of runs that answers SQL and can access nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from distbench.analysis.run import RunAnalysis
from distbench.core.errors import RecordContentError, RecordError, UsageError, did_you_mean
from distbench.core.units import format_count
from distbench.query.facts import view_rows
from distbench.query.loader import RunLoader, create_table
from distbench.query.table_files import add_table
from distbench.query.tables import TABLES, VIEW_PREFIX, SqlColumn, SqlTable, view_tables
from distbench.record import RecordRow
from distbench.record.parquet import first_line, replace_surrogates
from distbench.record.record_reader import untrusted_records
from distbench.record.run_folder import Run
from distbench.views.base import View, all_views

_QUERY_STATEMENTS = ("SELECT", "EXPLAIN", "PRAGMA", "CALL", "MULTI")
"""Kinds of statement that only read, in DuckDB's terms; a pivot is several."""
_READ_ONLY = (
    "is not supported, because runs are read-only; use select, from, with, describe, show, summarize or "
    "explain"
)
_MAX_VALUES = 10_000_000
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

    def __init__(
        self,
        runs: Iterable[Run],
        files: Mapping[str, Path] | None = None,
        *,
        max_values: int = _MAX_VALUES,
    ) -> None:
        """Read *runs*; of several, those that disappear meanwhile are left out.

        Args:
            files: Files of other tools, by the names of their tables.
            max_values: Maximum number of values in a result, which takes some 100 bytes for each.

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
        self._may_lack_runs, self._max_values = len(self._runs) > 1, max_values
        for run in self._runs:
            _unless_gone(loading.add_run, run, self._may_lack_runs)
        loading.create_tables(self._database)
        self._described, self._documented = loading.described, loading.documented
        self.damaged = loading.damaged
        """Unreadable trials of each run, which no table includes."""
        self.contradictory: dict[Path, str] = {}
        """Folders of runs whose records are inconsistent, so that no table of a view includes them, each with
        the reason.
        """
        self._views = {table.name: table for table in view_tables() if table.name not in self._documented}
        self._filled: set[str] = set()
        self._only_run: RunAnalysis | None = None
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
            with self._read_only():
                return self._result(sql)
        except duckdb.TransactionException as error:
            raise UsageError(f"query: a change of a table {_READ_ONLY}") from error
        except duckdb.Error as error:
            raise UsageError(f"query: {self._message(error, sql)}") from error

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        """Refuse changes in the body: those within ``with`` are part of a select."""
        self._database.execute("begin transaction read only")
        try:
            yield
        finally:
            self._database.execute("rollback")

    def _result(self, sql: str) -> QueryResult:
        result = self._database.execute(sql)
        if result is None or result.description is None:
            raise UsageError('query: missing SQL, such as "select * from cases"')
        columns, types = zip(*((name, str(type_)) for name, type_, *_ in result.description), strict=True)
        most = self._max_values // len(columns)
        # one row more shows that there are more
        rows = result.fetchmany(most + 1)
        if len(rows) > most:
            raise UsageError(
                f"query: more than {most:,} rows, the maximum for {format_count(len(columns), 'column')}; "
                "aggregate, name fewer columns, or add limit and offset"
            )
        return QueryResult(columns, types, rows)

    def _check_is_query(self, sql: str) -> None:
        """Refuse other statements: they would change the copy in memory and leave the runs as they were."""
        for statement in self._database.extract_statements(sql):
            if (kind := statement.type.name) not in _QUERY_STATEMENTS:
                raise UsageError(f"query: {kind.replace('_', ' ')} {_READ_ONLY}")

    def tables(self) -> list[SqlTable]:
        """Tables with all of their columns, documented if a record or a view describes them."""
        columns = self._columns()
        every = [*TABLES, *sorted(columns.keys() - TABLES.keys() - self._views.keys())]
        docs = {name: table.doc for name, table in self._documented.items()}
        unknown = "Rows that the ranks wrote to their table {}.".format
        made = [SqlTable(name, docs.get(name, unknown(name)), columns[name]) for name in every]
        return [*made, *self._views.values()]

    def _fill_views(self, names: set[str]) -> None:
        """Fill the tables of the views among *names*: filling all of them would take most of the time."""
        wanted = (names & self._views.keys()) - self._filled
        if not wanted:
            return
        views = {name: all_views()[name.removeprefix(VIEW_PREFIX)] for name in wanted}
        rows: dict[str, list[RecordRow]] = {name: [] for name in wanted}
        for run in self._runs:
            for name, of_run in self._rows_of_views(run, views).items():
                rows[name] += of_run
        for name in wanted:
            create_table(self._database, name, self._views[name].columns, rows[name])
        self._filled |= wanted

    def _rows_of_views(self, run: Run, views: Mapping[str, View]) -> dict[str, list[RecordRow]]:
        """Rows of *run* by the name of the table; of several runs, none of one that contradicts itself.

        Raises:
            UsageError: the only run can't be read.
            RecordContentError: a file does not match its record, and the runs are to be read again.
        """
        analysed = self._analysis(run)
        try:
            with untrusted_records(str(run.folder)):
                return {name: view_rows(analysed, view) for name, view in views.items()} if analysed else {}
        except RecordContentError:
            raise
        except RecordError as error:
            if not self._may_lack_runs:
                raise
            self.contradictory[run.folder] = str(error)
            return {}

    def _analysis(self, run: Run) -> RunAnalysis | None:
        """Analysis of *run*; None if it has disappeared and is one of several.

        That of the only run is kept, as each view would read all of it again; many would fill the memory.
        """
        if self._only_run is not None:
            return self._only_run
        analysed = _unless_gone(RunAnalysis.read, run, self._may_lack_runs)
        self._only_run = None if self._may_lack_runs else analysed
        return analysed

    def _columns(self) -> dict[str, tuple[SqlColumn, ...]]:
        """Columns of each table: one query for all, because each one reads the whole catalogue."""
        columns: dict[str, list[SqlColumn]] = {}
        for table, name, type_ in self._database.execute(
            "select table_name, column_name, lower(data_type) from information_schema.columns "
            "where table_schema = 'main' order by table_name, ordinal_position"
        ).fetchall():
            columns.setdefault(table, []).append(self._column(table, name, type_))
        return {table: tuple(own) for table, own in columns.items()}

    def _column(self, table: str, name: str, type_: str) -> SqlColumn:
        documented = self._documented.get(table)
        if known := next((c for c in (documented.columns if documented else ()) if c.name == name), None):
            return known
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
        if "'pytz'" in message:
            # DuckDB converts no such time without it
            return "times with a time zone need pytz; install it, or cast them, as in now()::timestamp"
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
