"""Fills a database with the tables of runs: facts from their JSON, samples and rows from their Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distbench.core.errors import ContentError
from distbench.core.job import MEASURE
from distbench.query import facts, tables
from distbench.query.tables import TABLES, TRIAL, Column, Table
from distbench.record import Record, Row
from distbench.record.parquet import first_line, literal, path_text, quoted, select, unique
from distbench.record.reading import Damaged, Stored
from distbench.record.rebuilding import described
from distbench.record.run_folder import Run

if TYPE_CHECKING:
    import duckdb

# names of columns that no table of a metric has
_FILE, _TRIAL, _ORDER = '"distbench file"', '"distbench trial"', '"distbench order"'
_ALWAYS = ("step_s", "loss")
"""Columns that ``steps`` has whether or not a record does."""
_NUMBER = Column("trial", "bigint", "Number of the trial among those that are read.")
_DESCRIPTION = (
    _NUMBER,
    Column("name", "varchar", "Column of the record."),
    Column("timed", "boolean", "Whether it has a sample for each step of the time pass."),
    Column("pass", "varchar", "Its pass."),
    Column("unit", "varchar", "Its unit."),
)
_MADE = {"runs", "cases", "trials", "ranks", "jobs", "steps", "samples"}


@dataclass
class _Source:
    """Where the rows of one table come from; a trial goes by its number."""

    files: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, Row]] = field(default_factory=list)
    """Rows that stand in a record itself (format 1)."""


@dataclass
class Loading:
    """What is gathered of runs before it becomes tables."""

    runs: list[Row] = field(default_factory=list)
    cases: list[Row] = field(default_factory=list)
    trials: list[Row] = field(default_factory=list)
    jobs: list[Row] = field(default_factory=list)
    """Trials that were not made to be timed."""
    ranks: list[Row] = field(default_factory=list)
    """Where each rank of a trial ran, by the number of the trial."""
    keys: list[Row] = field(default_factory=list)
    """By which each trial is known, in the order of their numbers."""
    columns: list[Row] = field(default_factory=list)
    """Each column of samples of each trial: its pass, its unit, whether it is of the timed steps."""
    samples: _Source = field(default_factory=_Source)
    sources: dict[str, _Source] = field(default_factory=dict)
    """Of each table of a metric or a kind of job."""
    documented: dict[str, Table] = field(default_factory=lambda: TABLES | tables.OF_JOBS)
    """Each described table; that of a plug-in's metric is described by the first record that has it."""
    damaged: list[tuple[Run, Sequence[Damaged]]] = field(default_factory=list)
    """Trials of each run that can't be read."""
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Description of each column that any record describes; the first one counts."""

    def gather(self, run: Run) -> None:
        """Take in what *run* has stored; its damaged trials are only counted.

        Raises:
            UsageError: this is no folder of a run.
            RecordError: neither ``run.json`` nor a record can be read.
        """
        contents = run.contents()
        info = described(run, contents)
        timed = [trial for trial in contents.stored if trial.record.job.kind == MEASURE]
        records = [trial.record for trial in timed]
        self.runs.append(facts.run_row(info, records, contents.damaged, run.folder))
        self.cases += facts.case_rows(info, records, contents.damaged)
        self.damaged.append((run, contents.damaged))
        for trial in timed:
            self._gather_trial(trial)
        for trial in contents.stored:
            if trial.record.job.kind != MEASURE:
                self._gather_job(trial)

    def fill(self, database: duckdb.DuckDBPyConnection) -> None:
        """Make the tables.

        Raises:
            ContentError: a Parquet file can't be read, or does not hold what its record says.
        """
        import duckdb

        try:
            self._fill(database)
        except duckdb.Error as error:
            raise ContentError(f"the records of a run can't be made tables: {first_line(error)}") from error

    def _fill(self, database: duckdb.DuckDBPyConnection) -> None:
        # while they stand, the steps between are told apart from the tables by their schema
        database.execute("create schema raw")
        keys = [{**key, "trial": number} for number, key in enumerate(self.keys)]
        make(database, "raw.keys", (*TRIAL, _NUMBER), keys)
        facts_of = {tables.RUNS: self.runs, tables.CASES: self.cases}
        facts_of |= {tables.TRIALS: self.trials, tables.JOBS: self.jobs}
        for table, rows in facts_of.items():
            make(database, table.name, table.columns, rows)
        self._fill_samples(database)
        self._fill_ranks(database)
        names = {name: self.documented.get(name) for name in [*(TABLES.keys() - _MADE), *self.sources]}
        for name, sql_name in zip(names, unique(names, _MADE), strict=True):
            documented = names[name]
            columns = documented.columns if documented and name not in _MADE else TRIAL
            _fill_table(database, sql_name, columns, self.sources.get(name, _Source()))
        database.execute("drop schema raw cascade")

    def _gather_trial(self, stored: Stored) -> None:
        record, number = stored.record, self._number(stored.record)
        self.trials.append(facts.trial_row(record))
        self.columns += _columns(record, number)
        self.ranks += [{"trial": number, **row} for row in facts.rank_rows(record)]
        for name, column in record.columns.items():
            self.described.setdefault(name, column)
        if stored.files.samples:
            self.samples.files[path_text(stored.files.samples)] = number
        else:
            self.samples.rows += [(number, row) for row in _sample_rows(record)]
        self._gather_tables(stored, number, list(record.tables))

    def _gather_job(self, stored: Stored) -> None:
        number = self._number(stored.record)
        self.jobs.append(facts.job_row(stored.record))
        # the documented tables are those of timed trials
        self._gather_tables(stored, number, [name for name in stored.record.tables if name not in TABLES])

    def _number(self, record: Record) -> int:
        """The number by which the trial of *record* goes from here on."""
        self.keys.append(facts.trial_key(record))
        return len(self.keys) - 1

    def _gather_tables(self, stored: Stored, number: int, names: Sequence[str]) -> None:
        record = stored.record
        for name, spec in record.described_tables.items():
            if name not in self.documented:
                self.documented[name] = tables.of_metric(spec)
        for name in names:
            source = self.sources.setdefault(name, _Source())
            if name in stored.files.tables:
                source.files[path_text(stored.files.tables[name])] = number
            else:
                source.rows += [(number, row) for row in record.tables[name]]

    def _fill_samples(self, database: duckdb.DuckDBPyConnection) -> None:
        make(database, "raw.columns", _DESCRIPTION, self.columns)
        _read(database, tables.SAMPLES.columns, self.samples)
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
        keys = [column.name for column in TRIAL] + ["rank", "step"]
        values = [
            f"max(value) filter (name = {literal(name)}) as {sql_name}"
            for name, sql_name in zip(names, unique(names, keys), strict=True)
        ]
        database.execute(
            f"""create table steps as select {_listed(keys)}, {", ".join(values)}
            from raw.samples where timed group by trial, {_listed(keys)} order by trial, rank, step"""
        )

    def _fill_ranks(self, database: duckdb.DuckDBPyConnection) -> None:
        make(database, "raw.seats", (_NUMBER, *tables.SEAT), self.ranks)
        columns = [column.name for column in (*TRIAL, *tables.SEAT)]
        database.execute(
            f"""create table ranks as
            with measured as (
                select trial, rank, avg(value) filter (name = 'step_s' and timed) as step_s,
                    avg(value) filter (name = 'work_s') as work_s
                from raw.samples group by trial, rank
            )
            select {_listed(columns)}, step_s, work_s,
                work_s = max(work_s) over (partition by trial) as is_slowest
            from raw.seats full join measured using (trial, rank) join raw.keys using (trial)
            order by trial, rank"""
        )


def _columns(record: Record, number: int) -> Iterator[Row]:
    for name in record.samples:
        column = record.columns.get(name, {})
        timed, pass_ = facts.is_timed(record, name), column.get("pass")
        yield {"trial": number, "name": name, "timed": timed, "pass": pass_, "unit": column.get("unit")}


def _sample_rows(record: Record) -> Iterator[Row]:
    for name, ranks in record.samples.items():
        for rank, steps in enumerate(ranks):
            for step, value in enumerate(steps):
                yield {"name": name, "rank": rank, "step": step, "value": value}


def _fill_table(
    database: duckdb.DuckDBPyConnection, name: str, columns: Sequence[Column], source: _Source
) -> None:
    """Make a table of a metric: which trial, the documented columns, and those that were found."""
    _read(database, columns, source)
    keys = [column.name for column in TRIAL]
    documented = {column.name: column.type for column in columns if column.name not in keys}
    types = {row[0]: row[1] for row in database.execute("describe raw.rows").fetchall()}
    types = {column: type_ for column, type_ in types.items() if quoted(column) not in (_TRIAL, _ORDER)}
    parts = [
        f"{_cast(database, column, type_, documented.get(column))} as {sql_name}"
        for (column, type_), sql_name in zip(types.items(), unique(types, keys), strict=True)
    ]
    database.execute(
        f"""create table {name} as select {_listed(keys, "k.")}, {", ".join(parts) or "null"}
        from raw.rows r join raw.keys k on k.trial = r.{_TRIAL} order by r.{_ORDER}"""
    )


def _cast(database: duckdb.DuckDBPyConnection, name: str, type_: str, documented: str | None) -> str:
    """A column as its table has it: one in which nothing is known is written as boolean."""
    if type_ == "BOOLEAN":
        ((known,),) = database.execute(f"select count({quoted(name)}) from raw.rows").fetchall()
        if not known:
            return f"null::{documented or 'double'}"
    return f"r.{quoted(name)}"


def _read(database: duckdb.DuckDBPyConnection, columns: Sequence[Column], source: _Source) -> None:
    """Make ``raw.rows`` of *source*: the documented columns at least, and the number of the trial."""
    import duckdb

    keys = {column.name for column in TRIAL}
    names = [column.name for column in columns if column.name not in keys]
    names += [name for _, row in source.rows for name in row]
    every = {name: [row.get(name) for _, row in source.rows] for name in dict.fromkeys(names)}
    query, values = select({**every, "distbench trial": [number for number, _ in source.rows]})
    parts, bound = [query], list(values)
    if source.files:
        query, values = select({"distbench file": list(source.files), "trial": list(source.files.values())})
        parts.append(
            f"""select r.* exclude ({_FILE}), f.trial as {_TRIAL} from read_parquet(
                ?, union_by_name = true, hive_partitioning = false, filename = {literal(_FILE[1:-1])}
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
        raise ContentError(f"the samples or tables of a run can't be read: {first_line(error)}") from error


def make(
    database: duckdb.DuckDBPyConnection, name: str, columns: Sequence[Column], rows: Sequence[Row]
) -> None:
    """Make a table of *rows*: the documented *columns* by their types, then the others, which are numbers."""
    types = {column.name: column.type for column in columns}
    types |= {key: "double" for row in rows for key in row if key not in types}
    query, values = select({key: [row.get(key) for row in rows] for key in types})
    # a foreign record may say anything where a time is expected
    cast = ", ".join(
        f"try_cast({column} as {type_}) as {column}"
        for column, type_ in zip(unique(types), types.values(), strict=True)
    )
    database.execute(f"create table {name} as select {cast} from ({query})", values)


def _listed(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{quoted(name)}" for name in names)
