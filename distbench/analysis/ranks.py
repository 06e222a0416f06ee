"""Step times of each rank, and ranks and nodes that are significantly slower over trials.

In every trial one rank has the most work (``work_s``: its step less the waiting for others). If all ranks
were equal, each of n would be that one in 1/n of the trials, whatever the case. A rank or a node that is
slowest far more often is slow itself, or has more to do.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, sorted_by_value
from distbench.analysis.length_imbalance import length_imbalance
from distbench.analysis.losses.case_losses import finite_values
from distbench.analysis.statistics.distributions import holm_adjusted, poisson_binomial_tail
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.metrics.telemetry import DEFAULT_EFFECT
from distbench.record import Record, Status

STRAGGLER_RATIO = 1.2
"""Ratio of the slowest rank's work to the median rank's above which the rank is named."""

# a rank's own work if it was profiled; else its steps, which include waiting for others
_WORK_COLUMNS = ("work_s", "step_s")

SIGNIFICANCE = 0.01
"""Familywise significance level for the ranks and nodes that a run may name."""


@dataclass(frozen=True)
class RankStepTimes:
    """One column of one trial, by rank and step."""

    row: CaseSummary
    column: str
    """``work_s``; ``step_s`` if no rank reported its work."""
    seconds: list[list[float | None]]
    """Rank -> step -> seconds."""
    means: dict[int, float]
    """Mean over the steps of each rank that has any."""
    median: float
    """Median of the means; above 0."""


def mean_by_rank(record: Record, column: str = "work_s") -> dict[int, float]:
    """Mean of *column* over the steps of each rank that has any."""
    means = {}
    for rank, steps in enumerate(record.samples.get(column, [])):
        if known := finite_values(steps):
            means[rank] = statistics.fmean(known)
    return means


def notable_rank_times(cases: Sequence[CaseSummary], limit: int) -> list[RankStepTimes]:
    """Step times of at most *limit* notable cases: the slowest and the most uneven alternately."""
    return list(islice((grid for row in _notable_cases(cases) if (grid := _rank_step_times(row))), limit))


def _notable_cases(cases: Sequence[CaseSummary]) -> list[CaseSummary]:
    rows = [row for row in cases if row.measured and row.case.world_size > 1]
    slow, uneven = sorted_by_value(rows, THROUGHPUT), sorted_by_value(rows, "imbalance", reverse=True)
    both = [row for pair in zip(uneven, slow, strict=False) for row in pair]
    return list({row.case.id: row for row in [*both, *uneven, *slow]}.values())


def _rank_step_times(row: CaseSummary) -> RankStepTimes | None:
    if row.representative_trial is None:
        return None
    for column in _WORK_COLUMNS:
        means = mean_by_rank(row.representative_trial, column)
        if len(means) > 1 and (median := statistics.median(means.values())) > 0:
            return RankStepTimes(row, column, [*row.representative_trial.samples[column]], means, median)
    return None


@dataclass(frozen=True)
class Straggler:
    """A rank at its location, or a whole node, that is slowest more often than by chance."""

    name: str
    """``rank 5 on node-03 (GPU 1)``, ``node-03``."""
    node: str
    """Empty: the node where the command ran."""
    slowest_trials: int
    """Trials in which it, or one of its ranks, had the most work of all ranks."""
    trials: int
    """Trials in which it took part."""
    work_ratio: float
    """Ratio of its work to the median of the others, the median over these trials."""
    p_value: float
    """Probability of as many or more if all were equal, adjusted for all that could be named."""

    @property
    def sentence(self) -> str:
        """Sentence for reports."""
        return (
            f"Straggler: {self.name} is slowest in {self.slowest_trials} of "
            f"{format_count(self.trials, 'trial')}, with {self.work_ratio:.2f}x the median work of "
            f"the other ranks (probability if all ranks were equal: {_p_value_text(self.p_value)})."
        )


@dataclass(frozen=True)
class _TrialShare:
    """Result of one rank or node in one trial."""

    name: str
    node: str
    expected: float
    """Probability that it contains the slowest rank if all ranks are equal."""
    is_slowest: bool
    excess: float


def stragglers(records: Sequence[Record]) -> list[Straggler]:
    """Ranks that are slowest more often than by chance, and nodes without such a rank.

    Trials on a noisy machine, of one rank, or whose imbalance the lengths of rows cause do not count.
    """
    trials = [record for record in records if _is_eligible(record)]
    if not any(_is_uneven(record) for record in trials):
        return []
    # each trial has the same rows, so that the same rank has the longest
    worked = [(record, mean_by_rank(record)) for record in trials if not length_imbalance(record)]
    complete = [(record, own) for record, own in worked if len(own) == record.case.world_size]
    of_ranks = [part for record, own in complete for part in _ranks(record, own)]
    of_nodes = [part for record, own in complete for part in _nodes(record, own)]
    # corrected together: the level is the probability of naming any of them
    named, places = _significant([*of_ranks, *of_nodes]), {part.name for part in of_ranks}
    ranks = [each for each in named if each.name in places]
    nodes = [each for each in named if each.name not in places]
    # the node of a named rank may be slow only because of that rank
    return [*ranks, *(each for each in nodes if each.node not in {rank.node for rank in ranks})]


def rank_name(record: Record, rank: int) -> str:
    """*rank* with its location: ``rank 5 on node-03 (GPU 1)``."""
    node, device = record.node_of(rank), record.devices[rank] if rank < len(record.devices) else None
    gpu = "" if device is None or device.index is None else f" (GPU {device.index})"
    return f"rank {rank}" + (f" on {one_line(node)}" if node else "") + gpu


def _is_eligible(record: Record) -> bool:
    is_clean = record.status is Status.MEASURED and not record.degraded
    return is_clean and record.case.world_size > 1 and "imbalance" in record.values


def _is_uneven(record: Record) -> bool:
    # for two ranks the median is halfway between them; if no trial is uneven, no samples are read
    return record.values["imbalance"] > 1 + DEFAULT_EFFECT / 2.1


def _ranks(record: Record, own: dict[int, float]) -> list[_TrialShare]:
    return _parts(own, {rank: (rank_name(record, rank), record.node_of(rank)) for rank in own})


def _nodes(record: Record, own: dict[int, float]) -> list[_TrialShare]:
    if len(record.nodes) < 2:
        return []
    return _parts(own, {rank: (one_line(record.node_of(rank)), record.node_of(rank)) for rank in own})


def _parts(own: dict[int, float], part_of: dict[int, tuple[str, str]]) -> list[_TrialShare]:
    """Result of each part, from the work of each rank and the rank's part (name, node)."""
    most = max(own.values())
    # if several are tied for slowest, none counts
    slowest = part_of[max(own, key=own.__getitem__)] if [*own.values()].count(most) == 1 else None
    parts = []
    for part, of_it in group_pairs((part_of[rank], seconds) for rank, seconds in own.items()).items():
        others = [seconds for rank, seconds in own.items() if part_of[rank] != part]
        middle = statistics.median(others) if others else 0.0
        excess = statistics.median(of_it) / middle if middle > 0 else 1.0
        parts.append(_TrialShare(*part, len(of_it) / len(own), part == slowest, excess))
    return parts


def _significant(parts: Sequence[_TrialShare]) -> list[Straggler]:
    """Parts that are slowest significantly often, and by enough to matter."""
    by_name = group_pairs(((part.name, part.node), part) for part in parts)
    counts = {name: sum(part.is_slowest for part in same) for name, same in by_name.items()}
    chances = [
        poisson_binomial_tail(counts[name], [part.expected for part in same])
        for name, same in by_name.items()
    ]
    found = [
        Straggler(*name, counts[name], len(same), statistics.median(part.excess for part in same), chance)
        for (name, same), chance in zip(by_name.items(), holm_adjusted(chances), strict=True)
    ]
    return sorted(
        (each for each in found if each.p_value < SIGNIFICANCE and each.work_ratio >= 1 + DEFAULT_EFFECT),
        key=lambda each: each.p_value,
    )


def _p_value_text(chance: float) -> str:
    return "below 1 in a million" if chance < 1e-6 else f"1 in {1 / chance:,.0f}"
