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
    rows = {row.case.id: row for row in cases if row.comparable and _has_throughput(row)}
    found = series_of([row.case for row in rows.values()])
    names = short_names([series[0] for _, series in found])
    kinds = {kind for kind, _ in found}
    return [
        Series(
            name=names[series[0].id] + (f" ({kind})" if len(kinds) > 1 else ""),
            kind=kind,
            case=series[0],
            points=tuple(_point(rows[case.id], rows[series[0].id].values[THROUGHPUT]) for case in series),
        )
        for kind, series in found
    ]


def series_of(cases: Sequence[Case]) -> list[tuple[Kind, list[Case]]]:
    """Return the cases of each series, by world size, that of one device first."""
    return [(kind, one) for group in families(cases) for kind in DEFINITIONS for one in _series(group, kind)]


def families(cases: Sequence[Case]) -> list[list[Case]]:
    """Return groups of cases that differ in nothing but world size and batch, in their order."""
    return _grouped(cases, _key)


def _series(group: Sequence[Case], kind: Kind) -> list[list[Case]]:
    """Return the cases of each series of *kind* in *group*, by world size, that of one device first."""
    found = []
    for same_size in _grouped(group, lambda case: _size(case.batch, kind)):
        # where a world size cuts its batch in several ways, the same micro-batch or the same
        # number of them makes a series: whichever takes in more of the cases
        by_micro = _whole(_grouped(same_size, lambda case: case.batch.micro_batch_size))
        by_count = _whole(_grouped(same_size, lambda case: case.batch.gradient_accumulation_steps))
        either = [_whole([same_size]), by_micro, by_count]
        found += max(either, key=lambda all_series: sum(map(len, all_series)))
    return found


def _whole(groups: list[list[Case]]) -> list[list[Case]]:
    """Return those groups that have one case a world size, one device among them and not alone."""
    ordered = [sorted(group, key=lambda case: case.world_size) for group in groups]
    return [group for group in ordered if _is_series([case.world_size for case in group])]


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


def _key(case: Case) -> str:
    # the label is part of it, the name is not: names hold the world size
    work = case.to_json()
    return repr({key: value for key, value in work.items() if key not in ("name", "world_size", "batch")})


def _grouped(cases: Sequence[Case], key: Callable[[Case], Hashable]) -> list[list[Case]]:
    found: dict[Hashable, list[Case]] = {}
    for case in cases:
        found.setdefault(key(case), []).append(case)
    return list(found.values())
