"""Columns and tables of records, described so that a reader needs no plug-in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"] | None
RankReduction = Literal["max", "min", "sum", "mean", "first"]

RANK_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "sum": math.fsum,
    "mean": lambda values: math.fsum(values) / len(values),
    "first": lambda values: values[0],
}


@dataclass(frozen=True)
class Column:
    """One number that a metric gives, described so that a reader needs no plug-in."""

    name: str
    unit: str
    """``s``, ``B``, ``tokens/s``, or empty for a pure number."""
    better: Better
    """Direction that is better; None: neither."""
    over_ranks: RankReduction
    """Reduction of the values of all ranks to one number."""
    doc: str
    """The definition, with its source."""
    per_step: bool = False
    """True if a rank gives one number per step; its value is then the mean over the steps."""


def columns_of(
    unit: str, better: Better, over_ranks: RankReduction, *, per_step: bool = False
) -> Callable[..., tuple[Column, ...]]:
    """Return a function that makes columns of one kind from ``name=definition`` arguments."""
    return lambda **docs: tuple(
        Column(name, unit, better, over_ranks, doc, per_step) for name, doc in docs.items()
    )


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    name: str
    type: Literal["varchar", "bigint", "double"]
    """Type of SQL."""
    doc: str
    unit: str = ""
    """``s``, ``B``, or empty for a name, an index or a pure number."""


@dataclass(frozen=True)
class TableSpec:
    """A table that a metric leaves in records, described so that a reader needs no plug-in."""

    name: str
    doc: str
    columns: tuple[TableColumn, ...]
    by_rank: bool = True
    """True if a row belongs to a rank (column ``rank``); False: it was sampled outside of the ranks."""
