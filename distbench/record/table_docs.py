"""The tables of distbench's own metrics and kinds of job: what the readers of records rely on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

from distbench.core import registry
from distbench.core.columns import TableColumn, TableSpec

ColumnType = Literal["text", "number"]
_RANK_COLUMN = TableColumn("rank", "bigint", "Rank, from 0 on.")


@functools.cache
def documented_tables() -> Mapping[str, TableSpec]:
    """Each table by its name."""
    plugins = (*registry.built_in_plugins("metrics").values(), *registry.built_in_plugins("jobs").values())
    return {spec.name: spec for plugin in plugins for spec in plugin.tables}


@functools.cache
def column_types(table: str) -> Mapping[str, ColumnType]:
    """What each documented column of *table* holds where it is not null; nothing for another's table."""
    spec = documented_tables().get(table)
    columns = (*spec.columns, _RANK_COLUMN) if spec else ()
    return {column.name: "text" if column.type == "varchar" else "number" for column in columns}
