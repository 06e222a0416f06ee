"""Effect of a larger global batch on throughput and convergence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.core.grouping import group_by
from distbench.core.units import format_count
from distbench.jobs.convergence.verdict import ConvergenceEvidence


@dataclass(frozen=True)
class BatchSizeEffect:
    """A strategy with a larger global batch, compared with its smallest.

    Time to the target is (samples to the target) / (samples per second): the first is the cost of the larger
    batch, the second the gain of more devices (McCandlish et al. 2018, arXiv 1812.06162).
    """

    name: str
    size: int
    """Global batch in samples."""
    base_size: int
    learning_rate_note: str
    """Learning rates if they differ; else empty."""
    throughput: float
    """Samples per second (by the median step), as a multiple of the base's."""
    samples: float
    """Samples until the target was reached, as a multiple of the base's; 1: no loss."""

    @property
    def seconds(self) -> float:
        """Seconds to the target at that throughput, as a multiple of the base's."""
        return self.samples / self.throughput


def batch_size_effects(trained: Sequence[ConvergenceEvidence]) -> list[BatchSizeEffect]:
    """Effect of each larger batch on cases that differ only in batch, world size and learning rate."""
    done = [
        each for each in trained if each.group.trainings and all(t.target_row for t in each.group.trainings)
    ]
    alike = group_by(done, lambda each: each.group.case.work_key(("world_size", "batch", "optimizer.lr")))
    found = []
    for group in alike.values():
        base, *others = sorted(group, key=lambda each: (_size(each), each.group.case.world_size))
        found += [_batch_size_effect(base, each) for each in others if _size(each) > _size(base)]
    return found


def _batch_size_effect(base: ConvergenceEvidence, large: ConvergenceEvidence) -> BatchSizeEffect:
    one, other = base.group.case, large.group.case
    rates = one.optimizer.lr, other.optimizer.lr
    return BatchSizeEffect(
        name=f"{other.label} on {format_count(other.world_size, 'device')}",
        size=_size(large),
        base_size=_size(base),
        learning_rate_note=""
        if rates[0] == rates[1]
        else f" (learning rate {rates[1]:.3g} against {rates[0]:.3g})",
        throughput=_rate(large) / _rate(base),
        samples=_samples(large) / _samples(base),
    )


def _size(of: ConvergenceEvidence) -> int:
    return of.group.case.batch.global_batch_size


def _rate(of: ConvergenceEvidence) -> float:
    seconds = statistics.fmean(training.step_s for training in of.group.trainings)
    return _size(of) / seconds


def _samples(of: ConvergenceEvidence) -> float:
    return statistics.fmean(of.group.to_target("samples"))
