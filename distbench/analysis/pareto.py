"""The cases worth choosing between: of which no other is both faster and leaner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary


@dataclass(frozen=True)
class Front:
    """The Pareto front of the cases that train the same on as many devices."""

    world_size: int
    precision: str
    """Dtype of compute."""
    rows: tuple[CaseSummary, ...]
    """From the leanest to the fastest. By medians: neighbours may be within the noise of each other."""


def fronts(cases: Sequence[CaseSummary]) -> list[Front]:
    """Return a front for each number of devices and each work in one precision that has cases to compare.

    A case is left out if another has at least its throughput with no more memory, and is better in one
    of the two. Of cases alike in both, the first of the suite stands for all.
    """
    groups: dict[tuple[int, str, str], list[CaseSummary]] = {}
    for row in cases:
        if row.comparable and THROUGHPUT in row.values and MEMORY in row.values:
            case = row.case
            batch = case.batch.global_batch_size
            work = repr((case.workload, case.data, case.precision, case.optimizer, case.seed, batch))
            groups.setdefault((case.world_size, case.precision.compute, work), []).append(row)
    made = [Front(size, precision, _front(rows)) for (size, precision, _), rows in groups.items()]
    return sorted(made, key=lambda front: front.world_size)


def _front(rows: Sequence[CaseSummary]) -> tuple[CaseSummary, ...]:
    found: list[CaseSummary] = []
    fastest = float("-inf")
    for row in sorted(rows, key=lambda row: (row.values[MEMORY].value, -row.values[THROUGHPUT].value)):
        if row.values[THROUGHPUT].value > fastest:
            found.append(row)
            fastest = row.values[THROUGHPUT].value
    return tuple(found)
