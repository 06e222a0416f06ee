"""Fill a database with the tables of runs: facts from JSON, samples and rows from Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distbench.core.errors import RecordContentError
from distbench.core.job import MEASURE
from distbench.query import facts, tables
from distbench.query.tables import TABLES, TRIAL_COLUMNS, SqlColumn, SqlTable
from distbench.record import Record, RecordRow
from distbench.record.parquet import (
    duckdb_path,
    first_line,
    quote_identifier,
    quote_string,
    select_statement,
    unique_columns,
)
from distbench.record.record_reader import DamagedTrial, StoredRecord
from distbench.record.run_folder import Run
from distbench.record.run_rebuild import describe_run

if TYPE_CHECKING:
    import duckdb

# names of columns that no table of a metric has
_FILE, _TRIAL, _ORDER = '"distbench file"', '"distbench trial"', '"distbench order"'
_ALWAYS = ("step_s", "loss")
"""Columns that ``steps`` always has, even if no record does."""
_TRIAL_NUMBER = SqlColumn("trial", "bigint", "Number of the trial among those that are read.")
_DESCRIPTION = (
    _TRIAL_NUMBER,
    SqlColumn("name", "varchar", "Column of the record."),
    SqlColumn("timed", "boolean", "Whether it has a sample for each step of the time pass."),
    SqlColumn("pass", "varchar", "Its pass."),
    SqlColumn("unit", "varchar", "Its unit."),
)
_LOADED_TABLES = {"runs", "cases", "trials", "ranks", "jobs", "steps", "samples"}


@dataclass
class _TableSource:
    """Source of the rows of one table; trials are identified by number."""

    files: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, RecordRow]] = field(default_factory=list)
    """Rows inside the record itself (format 1)."""


@dataclass
class RunLoader:
    """Data of runs, collected before the tables are created."""

    runs: list[RecordRow] = field(default_factory=list)
    cases: list[RecordRow] = field(default_factory=list)
    trials: list[RecordRow] = field(default_factory=list)
    jobs: list[RecordRow] = field(default_factory=list)
    """Trials that were not made for timing."""
    ranks: list[RecordRow] = field(default_factory=list)
    """Location of each rank, by the number of the trial."""
    trial_keys: list[RecordRow] = field(default_factory=list)
    """Key of each trial, in the order of their numbers."""
    columns: list[RecordRow] = field(default_factory=list)
    """Each column of samples of each trial: its pass, its unit, whether it is of the timed steps."""
    samples: _TableSource = field(default_factory=_TableSource)
    sources: dict[str, _TableSource] = field(default_factory=dict)
    """Source of each table of a metric or a kind of job."""
    documented: dict[str, SqlTable] = field(default_factory=lambda: TABLES | tables.JOB_TABLES)
    """Described tables; for a plug-in's metric, the first record that has the table describes it."""
    damaged: list[tuple[Run, Sequence[DamagedTrial]]] = field(default_factory=list)
    """Unreadable trials of each run."""
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Description of each column that any record describes; the first one counts."""

    def add_run(self, run: Run) -> None:
        """Collect the data of *run*; its damaged trials are only counted.

        Raises:
            UsageError: this is no folder of a run.
            RecordError: neither ``run.json`` nor a record can be read.
        """
        contents = run.contents()
        info = describe_run(run, contents)
        timed = [trial for trial in contents.stored if trial.record.job.kind == MEASURE]
        records = [trial.record for trial in timed]
        self.runs.append(facts.run_row(info, records, contents.damaged, run.folder))
        self.cases += facts.case_rows(info, records, contents.damaged)
        self.damaged.append((run, contents.damaged))
        for trial in timed:
            self._add_trial(trial)
        for trial in contents.stored:
            if trial.record.job.kind != MEASURE:
                self._add_job(trial)

    def create_tables(self, database: duckdb.DuckDBPyConnection) -> None:
        """Create the tables.

        Raises:
            RecordContentError: a Parquet file can't be read, or does not match its record.
        """
        import duckdb

        try:
            self._create_tables(database)
        except duckdb.Error as error:
            raise RecordContentError(
                f"can't convert the records of a run to tables: {first_line(error)}"
            ) from error

    def _create_tables(self, database: duckdb.DuckDBPyConnection) -> None:
        # intermediate tables have a schema of their own
        database.execute("create schema raw")
        keys = [{**key, "trial": number} for number, key in enumerate(self.trial_keys)]
        create_table(database, "raw.keys", (*TRIAL_COLUMNS, _TRIAL_NUMBER), keys)
        facts_of = {tables.RUNS: self.runs, tables.CASES: self.cases}
        facts_of |= {tables.TRIALS: self.trials, tables.JOBS: self.jobs}
        for table, rows in facts_of.items():
            create_table(database, table.name, table.columns, rows)
        self._fill_samples(database)
        self._fill_ranks(database)
        names = {
            name: self.documented.get(name) for name in [*(TABLES.keys() - _LOADED_TABLES), *self.sources]
        }
        for name, sql_name in zip(names, unique_columns(names, _LOADED_TABLES), strict=True):
            documented = names[name]
            columns = documented.columns if documented and name not in _LOADED_TABLES else TRIAL_COLUMNS
            _fill_table(database, sql_name, columns, self.sources.get(name, _TableSource()))
        database.execute("drop schema raw cascade")

    def _add_trial(self, stored: StoredRecord) -> None:
        record, number = stored.record, self._trial_number(stored.record)
        self.trials.append(facts.trial_row(record))
        self.columns += _columns(record, number)
        self.ranks += [{"trial": number, **row} for row in facts.rank_rows(record)]
        for name, column in record.columns.items():
            self.described.setdefault(name, column)
        if stored.files.samples:
            self.samples.files[duckdb_path(stored.files.samples)] = number
        else:
            self.samples.rows += [(number, row) for row in _sample_rows(record)]
        self._add_tables(stored, number, list(record.tables))

    def _add_job(self, stored: StoredRecord) -> None:
        number = self._trial_number(stored.record)
        self.jobs.append(facts.job_row(stored.record))
        # the documented tables are those of timed trials
        self._add_tables(stored, number, [name for name in stored.record.tables if name not in TABLES])

    def _trial_number(self, record: Record) -> int:
        """Assign a number to the trial of *record*."""
        self.trial_keys.append(facts.trial_key(record))
        return len(self.trial_keys) - 1

    def _add_tables(self, stored: StoredRecord, number: int, names: Sequence[str]) -> None:
        record = stored.record
        for name, spec in record.described_tables.items():
            if name not in self.documented:
                self.documented[name] = tables.metric_table(spec)
            # a described table without rows has its columns
            self.sources.setdefault(name, _TableSource())
        for name in names:
            source = self.sources.setdefault(name, _TableSource())
            if name in stored.files.tables:
                source.files[duckdb_path(stored.files.tables[name])] = number
            else:
                source.rows += [(number, row) for row in record.tables[name]]

    def _fill_samples(self, database: duckdb.DuckDBPyConnection) -> None:
        create_table(database, "raw.columns", _DESCRIPTION, self.columns)
        _create_raw_rows(database, tables.SAMPLES.columns, self.samples)
        database.execute(
            f"""create table raw.samples as
            select k.*, r.name::varchar as name, r.rank::bigint as rank, r.step::bigint as step,
                r.value::double as value, c.pass, c.unit, c.timed
            from raw.rows r join raw.keys k on k.trial = r.{_TRIAL}
            left join raw.columns c on c.trial = k.trial and c.name = r.name order by r.{_ORDER}"""
        )
        database.execute("create table samples as select * exclude (trial, timed) from raw.samples")
        timed = sorted({row["name"] for row in self.columns if row["timed"]} - set(_ALWAYS))
        names = [*_ALWAYS, *timed]
        keys = [column.name for column in TRIAL_COLUMNS] + ["rank", "step"]
        values = [
            f"max(value) filter (name = {quote_string(name)}) as {sql_name}"
            for name, sql_name in zip(names, unique_columns(names, keys), strict=True)
        ]
        database.execute(
            f"""create table steps as select {_column_list(keys)}, {", ".join(values)}
            from raw.samples where timed group by trial, {_column_list(keys)} order by trial, rank, step"""
        )

    def _fill_ranks(self, database: duckdb.DuckDBPyConnection) -> None:
        create_table(database, "raw.seats", (_TRIAL_NUMBER, *tables.RANK_PLACEMENT), self.ranks)
        columns = [column.name for column in (*TRIAL_COLUMNS, *tables.RANK_PLACEMENT)]
        database.execute(
            f"""create table ranks as
            with measured as (
                select trial, rank, avg(value) filter (name = 'step_s' and timed) as step_s,
                    avg(value) filter (name = 'work_s') as work_s
                from raw.samples group by trial, rank
            )
            select {_column_list(columns)}, step_s, work_s,
                work_s = max(work_s) over (partition by trial) as is_slowest
            from raw.seats full join measured using (trial, rank) join raw.keys using (trial)
            order by trial, rank"""
        )


def _columns(record: Record, number: int) -> Iterator[RecordRow]:
    for name in record.samples:
        column = record.columns.get(name, {})
        timed, pass_ = facts.is_timed(record, name), column.get("pass")
        yield {"trial": number, "name": name, "timed": timed, "pass": pass_, "unit": column.get("unit")}


def _sample_rows(record: Record) -> Iterator[RecordRow]:
    for name, ranks in record.samples.items():
        for rank, steps in enumerate(ranks):
            for step, value in enumerate(steps):
                yield {"name": name, "rank": rank, "step": step, "value": value}


def _fill_table(
    database: duckdb.DuckDBPyConnection, name: str, columns: Sequence[SqlColumn], source: _TableSource
) -> None:
    """Create a table of a metric: the trial's key, the documented columns, and other columns in the rows."""
    if not (source.files or source.rows):
        # most tables of most runs
        create_table(database, name, columns, ())
        return
    _create_raw_rows(database, columns, source)
    keys = [column.name for column in TRIAL_COLUMNS]
    documented = {column.name: column.type for column in columns if column.name not in keys}
    types = {row[0]: row[1] for row in database.execute("describe raw.rows").fetchall()}
    types = {
        column: type_ for column, type_ in types.items() if quote_identifier(column) not in (_TRIAL, _ORDER)
    }
    known = _known_columns(database, [column for column, type_ in types.items() if type_ == "BOOLEAN"])
    parts = [
        f"r.{quote_identifier(column)} as {sql_name}"
        if type_ != "BOOLEAN" or column in known
        else f"null::{documented.get(column) or 'double'} as {sql_name}"
        for (column, type_), sql_name in zip(types.items(), unique_columns(types, keys), strict=True)
    ]
    database.execute(
        f"""create table {name} as select {_column_list(keys, "k.")}, {", ".join(parts) or "null"}
        from raw.rows r join raw.keys k on k.trial = r.{_TRIAL} order by r.{_ORDER}"""
    )


def _known_columns(database: duckdb.DuckDBPyConnection, names: Sequence[str]) -> set[str]:
    """Those of *names* with any known value: a column without one is stored as boolean."""
    if not names:
        return set()
    counts = ", ".join(f"count({quote_identifier(name)})" for name in names)
    (row,) = database.execute(f"select {counts} from raw.rows").fetchall()
    return {name for name, known in zip(names, row, strict=True) if known}


def _create_raw_rows(
    database: duckdb.DuckDBPyConnection, columns: Sequence[SqlColumn], source: _TableSource
) -> None:
    """Create ``raw.rows`` of *source*: at least the documented columns, and the number of the trial."""
    import duckdb

    keys = {column.name for column in TRIAL_COLUMNS}
    names = [column.name for column in columns if column.name not in keys]
    names += [name for _, row in source.rows for name in row]
    every = {name: [row.get(name) for _, row in source.rows] for name in dict.fromkeys(names)}
    query, values = select_statement({**every, "distbench trial": [number for number, _ in source.rows]})
    parts, bound = [query], list(values)
    if source.files:
        query, values = select_statement(
            {"distbench file": list(source.files), "trial": list(source.files.values())}
        )
        parts.append(
            f"""select r.* exclude ({_FILE}), f.trial as {_TRIAL} from read_parquet(
                ?, union_by_name = true, hive_partitioning = false, filename = {quote_string(_FILE[1:-1])}
            ) r join ({query}) f using ({_FILE})"""
        )
        bound += [list(source.files), *values]
    try:
        database.execute(
            f"""create or replace table raw.rows as
            select *, row_number() over () as {_ORDER} from ({" union all by name ".join(parts)})""",
            bound,
        )
    except duckdb.Error as error:
        raise RecordContentError(f"can't read the samples or tables of a run: {first_line(error)}") from error


def create_table(
    database: duckdb.DuckDBPyConnection, name: str, columns: Sequence[SqlColumn], rows: Sequence[RecordRow]
) -> None:
    """Create a table of *rows*: the documented *columns* by their types, then the others as numbers."""
    types = {column.name: column.type for column in columns}
    types |= {key: "double" for row in rows for key in row if key not in types}
    query, values = select_statement({key: [row.get(key) for row in rows] for key in types})
    # a foreign record may have any value instead of a time
    cast = ", ".join(
        f"try_cast({column} as {type_}) as {column}"
        for column, type_ in zip(unique_columns(types), types.values(), strict=True)
    )
    database.execute(f"create table {name} as select {cast} from ({query})", values)


def _column_list(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{quote_identifier(name)}" for name in names)
