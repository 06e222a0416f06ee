"""The tables of distbench's own metrics and kinds of job: what the readers of records rely on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

from distbench.core import registry
from distbench.core.columns import TableColumn, TableSpec

Kind = Literal["text", "number"]
_RANK = TableColumn("rank", "bigint", "Rank, from 0 on.")


@functools.cache
def documented() -> Mapping[str, TableSpec]:
    """Each table by its name."""
    plugins = (*registry.built_in("metrics").values(), *registry.built_in("jobs").values())
    return {spec.name: spec for plugin in plugins for spec in plugin.tables}


@functools.cache
def kinds_of(table: str) -> Mapping[str, Kind]:
    """What each documented column of *table* holds where it is not null; nothing for another's table."""
    spec = documented().get(table)
    columns = (*spec.columns, _RANK) if spec else ()
    return {column.name: "text" if column.type == "varchar" else "number" for column in columns}
