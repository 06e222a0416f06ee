"""How throughput grows with the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from distbench.analysis.names import short_names
from distbench.analysis.summary import THROUGHPUT, CaseSummary, Estimate
from distbench.case import Batch, Case

Kind = Literal["strong", "weak"]

DEFINITIONS: dict[Kind, str] = {
    "strong": "Strong scaling (the global batch is fixed): Eₙ = Xₙ / (n X₁), X being tokens/s. It is the "
    "parallel efficiency of the ScaLAPACK Users' Guide (T₁ / (n Tₙ), T the time of a step), with the "
    "same strategy on one device in the place of the best sequential program.",
    "weak": "Weak scaling (the batch of a device is fixed): Eₙ = Xₙ / (n X₁), X being tokens/s: what a "
    "device does among n, relative to what it does alone.",
}


@dataclass(frozen=True)
class Point:
    """One strategy at one world size."""

    world_size: int
    throughput: Estimate
    """``X_n``, in tokens/s."""
    efficiency: float
    """``X_n / (n X_1)``; see ``DEFINITIONS``."""
    low: float
    """Efficiency of the slowest trial here against the fastest on one device."""
    high: float
    """Efficiency of the fastest trial here against the slowest on one device."""
    row: CaseSummary
    """The case at this world size."""


@dataclass(frozen=True)
class Series:
    """One strategy over world sizes, its work otherwise the same."""

    name: str
    """The label, with what tells the series of one run apart."""
    kind: Kind
    case: Case
    """The case at world size 1."""
    points: tuple[Point, ...]


def scaling(cases: Sequence[CaseSummary]) -> list[Series]:
    """Return a series for each strategy that was measured on one device and on more.

    Cases belong to one series if they differ in nothing but the world size and what follows from
    it: with the global batch fixed the share of a device, with that share fixed the global batch.
    """
    alike = _grouped([row for row in cases if row.comparable and _has_throughput(row)], _key)
    rows = [(kind, series) for group in alike for kind in DEFINITIONS for series in _series_rows(group, kind)]
    names = short_names([series[0].case for _, series in rows])
    kinds = {kind for kind, _ in rows}
    return [
        Series(
            name=names[series[0].case.id] + (f" ({kind})" if len(kinds) > 1 else ""),
            kind=kind,
            case=series[0].case,
            points=tuple(_point(row, series[0].values[THROUGHPUT]) for row in series),
        )
        for kind, series in rows
    ]


def _series_rows(group: list[CaseSummary], kind: Kind) -> list[list[CaseSummary]]:
    """Return the rows of each series of *kind* in *group*, by world size, that of one device first."""
    found = []
    for same_size in _grouped(group, lambda row: _size(row.case.batch, kind)):
        # where a world size cuts its batch in several ways, the same micro-batch or the same
        # number of them makes a series: whichever takes in more of the cases
        by_micro = _whole(_grouped(same_size, lambda row: row.case.batch.micro_batch_size))
        by_count = _whole(_grouped(same_size, lambda row: row.case.batch.gradient_accumulation_steps))
        either = [_whole([same_size]), by_micro, by_count]
        found += max(either, key=lambda all_series: sum(map(len, all_series)))
    return found


def _whole(groups: list[list[CaseSummary]]) -> list[list[CaseSummary]]:
    """Return those groups that have one case a world size, one device among them and not alone."""
    ordered = [sorted(group, key=lambda row: row.case.world_size) for group in groups]
    return [group for group in ordered if _is_series([row.case.world_size for row in group])]


def _is_series(sizes: list[int]) -> bool:
    return sizes[0] == 1 and len(sizes) > 1 and len(set(sizes)) == len(sizes)


def _point(row: CaseSummary, base: Estimate) -> Point:
    size, here = row.case.world_size, row.values[THROUGHPUT]
    # on one device the efficiency is 1 by definition, whatever the trials differ by
    low, high = (1.0, 1.0) if size == 1 else (here.low / (size * base.high), here.high / (size * base.low))
    return Point(size, here, here.value / (size * base.value), low, high, row)


def _size(batch: Batch, kind: Kind) -> int:
    if kind == "strong":
        return batch.global_batch_size
    return batch.micro_batch_size * batch.gradient_accumulation_steps


def _has_throughput(row: CaseSummary) -> bool:
    return THROUGHPUT in row.values and row.values[THROUGHPUT].low > 0


def _key(row: CaseSummary) -> str:
    # the label is part of it, the name is not: names hold the world size
    work = row.case.to_json()
    return repr({key: value for key, value in work.items() if key not in ("name", "world_size", "batch")})


def _grouped(rows: Sequence[CaseSummary], key: Callable[[CaseSummary], Hashable]) -> list[list[CaseSummary]]:
    found: dict[Hashable, list[CaseSummary]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())
