"""Ranks and nodes that the others wait for over the trials of a run, told from chance.

In every trial one rank has the most work (``work_s``: its step less the waiting for others). If all were
alike, each rank of n would be that one in 1/n of the trials, whatever the case; a rank or a node that is
it far more often is slow itself, or has more to do.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.ranks import work
from distbench.analysis.statistics.probability import at_least, holm
from distbench.core.grouping import gathered
from distbench.core.text import one_line
from distbench.core.units import count_text
from distbench.metrics.telemetry import EFFECT
from distbench.record import Record, Status

CHANCE = 0.01
"""Chance, over all that could be named in a run, below which one is named."""


@dataclass(frozen=True)
class Straggler:
    """A rank in its place, or a whole node, that is slowest more often than chance allows."""

    name: str
    """``rank 5 on node-03 (GPU 1)``, ``node-03``."""
    node: str
    """Empty: where the command ran."""
    slowest: int
    """Trials in which it, or a rank of it, had the most work of all ranks."""
    trials: int
    """Trials in which it took part."""
    excess: float
    """Its work over that of the median of the others, the median over these trials."""
    chance: float
    """Of as many or more if all were alike, adjusted for all that could be named."""

    @property
    def sentence(self) -> str:
        """What stands in reports."""
        return (
            f"Straggler: {self.name} is slowest in {self.slowest} of {count_text(self.trials, 'trial')}, "
            f"with {self.excess:.2f}x the work of the median of the others (chance of that if all were "
            f"alike: {_chance_text(self.chance)})."
        )


@dataclass(frozen=True)
class _Part:
    """What one rank or node did in one trial."""

    name: str
    node: str
    expected: float
    """Chance that the slowest rank is in it if all ranks are alike."""
    is_slowest: bool
    excess: float


def stragglers(records: Sequence[Record]) -> list[Straggler]:
    """Ranks that are slowest more often than chance allows, and nodes of which no rank alone is.

    Trials on a noisy machine do not count, nor those of one rank.
    """
    trials = [record for record in records if _counts(record)]
    if not any(_is_uneven(record) for record in trials):
        return []
    worked = [(record, work(record)) for record in trials]
    complete = [(record, own) for record, own in worked if len(own) == record.case.world_size]
    of_ranks = [part for record, own in complete for part in _ranks(record, own)]
    of_nodes = [part for record, own in complete for part in _nodes(record, own)]
    # together: the chance is that of naming any of them
    named, places = _named([*of_ranks, *of_nodes]), {part.name for part in of_ranks}
    ranks = [each for each in named if each.name in places]
    nodes = [each for each in named if each.name not in places]
    # the node of a rank that is named is slow because of it, for all that is known
    return [*ranks, *(each for each in nodes if each.node not in {rank.node for rank in ranks})]


def rank_text(record: Record, rank: int) -> str:
    """*rank* with where it ran: ``rank 5 on node-03 (GPU 1)``."""
    node, device = record.node_of(rank), record.devices[rank] if rank < len(record.devices) else None
    gpu = "" if device is None or device.index is None else f" (GPU {device.index})"
    return f"rank {rank}" + (f" on {one_line(node)}" if node else "") + gpu


def _counts(record: Record) -> bool:
    is_clean = record.status is Status.MEASURED and not record.degraded
    return is_clean and record.case.world_size > 1 and "imbalance" in record.values


def _is_uneven(record: Record) -> bool:
    # of two ranks the median is halfway between them; where no trial is uneven, no samples are read
    return record.values["imbalance"] > 1 + EFFECT / 2.1


def _ranks(record: Record, own: dict[int, float]) -> list[_Part]:
    return _parts(own, {rank: (rank_text(record, rank), record.node_of(rank)) for rank in own})


def _nodes(record: Record, own: dict[int, float]) -> list[_Part]:
    if len(record.nodes) < 2:
        return []
    return _parts(own, {rank: (one_line(record.node_of(rank)), record.node_of(rank)) for rank in own})


def _parts(own: dict[int, float], part_of: dict[int, tuple[str, str]]) -> list[_Part]:
    """What each part did, by the work of each rank and the part (name, node) that the rank is of."""
    most = max(own.values())
    # where several are the slowest nobody is
    slowest = part_of[max(own, key=own.__getitem__)] if [*own.values()].count(most) == 1 else None
    parts = []
    for part, of_it in gathered((part_of[rank], seconds) for rank, seconds in own.items()).items():
        others = [seconds for rank, seconds in own.items() if part_of[rank] != part]
        middle = statistics.median(others) if others else 0.0
        excess = statistics.median(of_it) / middle if middle > 0 else 1.0
        parts.append(_Part(*part, len(of_it) / len(own), part == slowest, excess))
    return parts


def _named(parts: Sequence[_Part]) -> list[Straggler]:
    """Those who are slowest too often for chance, and by enough to matter."""
    by_name = gathered(((part.name, part.node), part) for part in parts)
    counts = {name: sum(part.is_slowest for part in same) for name, same in by_name.items()}
    chances = [at_least(counts[name], [part.expected for part in same]) for name, same in by_name.items()]
    found = [
        Straggler(*name, counts[name], len(same), statistics.median(part.excess for part in same), chance)
        for (name, same), chance in zip(by_name.items(), holm(chances), strict=True)
    ]
    return sorted(
        (each for each in found if each.chance < CHANCE and each.excess >= 1 + EFFECT),
        key=lambda each: each.chance,
    )


def _chance_text(chance: float) -> str:
    return "below 1 in a million" if chance < 1e-6 else f"1 in {1 / chance:,.0f}"
