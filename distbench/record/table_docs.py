"""Documented tables of built-in metrics and jobs, and their column types."""

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
    """Tables by name."""
    plugins = (*registry.built_in_plugins("metrics").values(), *registry.built_in_plugins("jobs").values())
    return {spec.name: spec for plugin in plugins for spec in plugin.tables}


@functools.cache
def column_types(table: str) -> Mapping[str, ColumnType]:
    """Types of the non-null values in the documented columns of *table*; empty for an unknown table."""
    spec = documented_tables().get(table)
    columns = (*spec.columns, _RANK_COLUMN) if spec else ()
    return {column.name: "text" if column.type == "varchar" else "number" for column in columns}
