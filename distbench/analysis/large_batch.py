"""What a larger global batch gains in throughput and loses in convergence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.convergence import Convergence
from distbench.case import Case


@dataclass(frozen=True)
class Effect:
    """One strategy with a larger global batch, beside the same with its smallest.

    Time to the target is (samples to the target) / (samples a second): the first is what the batch
    costs, the second what more devices gain (McCandlish et al. 2018, arXiv 1812.06162).
    """

    name: str
    size: int
    """Global batch in samples."""
    base_size: int
    scaled: str
    """The learning rates, if they are not the same; else empty."""
    throughput: float
    """Samples a second (by the median step), as a multiple of the base's."""
    samples: float
    """Samples until the target was reached, as a multiple of the base's; 1 loses nothing."""

    @property
    def seconds(self) -> float:
        """Seconds until then at that pace, as a multiple of the base's."""
        return self.samples / self.throughput


def effects(trained: Sequence[Convergence]) -> list[Effect]:
    """Return the effect of each larger batch on cases that are alike but for that and the world size."""
    alike: dict[str, list[Convergence]] = {}
    for each in trained:
        if each.group.trainings and all(training.reached for training in each.group.trainings):
            alike.setdefault(_key(each.group.case), []).append(each)
    found = []
    for group in alike.values():
        ordered = sorted(
            group, key=lambda each: (each.group.case.batch.global_batch_size, each.group.case.world_size)
        )
        base = ordered[0]
        size = base.group.case.batch.global_batch_size
        found += [_effect(base, each) for each in ordered if each.group.case.batch.global_batch_size > size]
    return found


def _effect(base: Convergence, large: Convergence) -> Effect:
    one, other = base.group.case, large.group.case
    rates = one.optimizer.lr, other.optimizer.lr
    return Effect(
        name=f"{other.label} on {other.world_size} device{'s' if other.world_size > 1 else ''}",
        size=other.batch.global_batch_size,
        base_size=one.batch.global_batch_size,
        scaled="" if rates[0] == rates[1] else f" (learning rate {rates[1]:.3g} against {rates[0]:.3g})",
        throughput=_rate(large) / _rate(base),
        samples=_samples(large) / _samples(base),
    )


def _rate(of: Convergence) -> float:
    seconds = statistics.fmean(training.step_s for training in of.group.trainings)
    return of.group.case.batch.global_batch_size / seconds


def _samples(of: Convergence) -> float:
    return statistics.fmean(of.group.to_target("samples"))


def _key(case: Case) -> str:
    work = case.to_json()
    work["optimizer"] = {key: value for key, value in work["optimizer"].items() if key != "lr"}
    return repr({key: value for key, value in work.items() if key not in ("name", "world_size", "batch")})
