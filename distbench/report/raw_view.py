"""Show any table that ranks or samplers left in a run's records, without a view of its own."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.columns import TableSpec
from distbench.core.job import job_kinds
from distbench.core.text import one_line
from distbench.record import Record
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, case_cells

_UNDESCRIBED = "Not described by its record."
_CASE_FIELDS = tuple(replace(each, heading="") for each in CASE_FIELDS)
_ROUND_FIELD = Field("round", "round", "Which trial of the case, from 0 on.", type="bigint")
_RANK_FIELD = Field("rank", "rank", "Rank, from 0 on.", type="bigint")


def record_table_names(run: RunAnalysis) -> list[str]:
    """Names of the tables in *run*, in the order of its records."""
    return list(dict.fromkeys(name for record in run.records for name in record.tables))


def record_table(run: RunAnalysis, name: str) -> Table:
    """All rows of the table *name*, with its columns as the records describe them."""
    records = [record for record in run.records if name in record.tables]
    spec = _spec(records, name)
    fields = [
        *_CASE_FIELDS,
        _ROUND_FIELD,
        *_fields(spec, [row for record in records for row in record.tables[name]]),
    ]
    names = {field.name for field in fields}
    rows = [_row(record, row, names) for record in records for row in record.tables[name]]
    return Table(name, spec.doc if spec else _UNDESCRIBED, tuple(fields), tuple(rows))


def _row(record: Record, row: Mapping[str, Any], names: Container[str]) -> TableRow:
    # a foreign record may hold anything
    cells = {
        key: value if isinstance(value, str | int | float | None) else str(value)
        for key, value in row.items()
        if key in names
    }
    return TableRow({**cells, **case_cells(record.case), "round": record.round}, one_line(record.case.name))


def _spec(records: Sequence[Record], name: str) -> TableSpec | None:
    """Description of the table: by the records, else by the metric or kind of job that writes it today."""
    tables = [
        *(m.tables for m in registry.built_in_plugins("metrics").values()),
        *(kind.tables for kind in job_kinds()),
    ]
    built_in = [spec for specs in tables for spec in specs]
    described = [record.described_tables[name] for record in records if name in record.described_tables]
    return next((spec for spec in [*described, *built_in] if spec.name == name), None)


def _fields(spec: TableSpec | None, rows: Sequence[Mapping[str, Any]]) -> list[Field]:
    columns = {column.name: column for column in spec.columns} if spec else {}
    fields = [_RANK_FIELD] if any("rank" in row for row in rows) else []
    for name in dict.fromkeys([*columns, *(key for row in rows for key in row)]):
        if known := columns.get(name):
            fields.append(Field(name, name, known.doc, known.unit, type=known.type))
        elif name not in ("rank", "round", *(each.name for each in CASE_FIELDS)):
            type_ = _type([row[name] for row in rows if row.get(name) is not None])
            fields.append(Field(name, name, _UNDESCRIBED, type=type_))
    return fields


def _type(values: Sequence[Any]) -> Literal["varchar", "bigint", "double"]:
    if any(isinstance(value, str) for value in values):
        return "varchar"
    return "bigint" if values and all(isinstance(value, int) for value in values) else "double"
