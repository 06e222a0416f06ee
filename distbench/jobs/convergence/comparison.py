"""Test each case against its reference, with p-values adjusted for multiple tests."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.statistics.distributions import fisher_exact_tail, holm_adjusted
from distbench.core.grouping import group_by
from distbench.jobs.convergence import REFERENCE_SEED_FACTOR
from distbench.jobs.convergence.arms import Contrast, contrasts
from distbench.jobs.convergence.trainings import FinishedTraining, Target, TrainingGroup, training_group
from distbench.record import Record

P_VALUE = 0.05
"""Probability that any case of a run that trains like its reference is reported as worse."""
CONFIDENCE = 0.95
"""Confidence of the one-sided interval that excludes a slowdown."""
MIN_DIFFERENCE = 0.001
"""Differences of final values below this fraction are ignored."""


@dataclass(frozen=True)
class MeanTest:
    """Test of the mean of a case against that of its reference."""

    mean: float
    reference: float
    p_worse: float
    """Probability of a mean as bad as the case's or worse if it trains like its reference, adjusted for the
    number of tests in the run."""
    p_better: float
    most: float
    """Largest fraction by which it may still be worse: upper end of the one-sided 95% interval."""

    @property
    def is_worse(self) -> bool:
        """True if the case is significantly worse."""
        return self.p_worse < P_VALUE

    @property
    def is_better(self) -> bool:
        """True if the case is significantly better."""
        return self.p_better < P_VALUE


class ConvergenceComparison:
    """Trainings of a case and of its reference."""

    def __init__(self, case_id: str, mine: list[Record], by_case: dict[str, list[Record]]) -> None:
        self.case_id = case_id
        asked: Any = mine[0].job.options
        self.options = asked
        of_merit = {key: asked.merit[key] for key in ("name", "unit", "better", "doc")}
        self.merit = Target(**of_merit, target=asked.target)
        self.group = training_group(mine, self.merit, mine)
        self.reference = training_group(by_case.get(asked.reference, []), self.merit, mine)

    @property
    def key(self) -> tuple[str, Target]:
        """Key shared by cases that have the same reference."""
        return self.options.reference, self.merit

    @property
    def certain_verdict(self) -> tuple[str, str]:
        """Word and reason of a verdict that needs no test; empty if there is none."""
        if self.group.failures:
            count = len(self.group.failures) + len(self.group.trainings)
            return "broke down", f"{len(self.group.failures)} of {count} trainings: {self.group.failures[0]}"
        if row := next((row for row in self.group.findings if row["kind"] == "ranks apart"), None):
            return "ranks drifted apart", f"rank {row['rank']} at step {row['step']}: {row['text']}"
        return "", ""

    @property
    def insufficient_data(self) -> str:
        """Reason why there are too few trainings to judge; empty if there are enough."""
        seeds, mine, theirs = self.options.seeds, self.group.trainings, self.reference.trainings
        if seeds < 2:
            return f"one training is too few; at least 2 are needed (converge.seeds = {seeds})"
        if len(mine) < seeds:
            return f"it has {len(mine)} of {seeds} trainings"
        if len(theirs) < (wanted := REFERENCE_SEED_FACTOR * seeds):
            why = f": {self.reference.failures[0]}" if self.reference.failures else ""
            return f"the reference has {len(theirs)} of {wanted} trainings{why}"
        return ""

    @property
    def missed_trainings(self) -> list[FinishedTraining]:
        """Trainings of the case that did not reach the target."""
        return [training for training in self.group.trainings if not training.target_row]

    @property
    def reference_misses(self) -> int:
        """Number of trainings of the reference that did not reach the target."""
        return sum(not training.target_row for training in self.reference.trainings)


@dataclass(frozen=True)
class CaseTests:
    """Test results of one case."""

    steps: MeanTest | None = None
    final: MeanTest | None = None
    p_missed: float | None = None
    """Adjusted probability of as many missed targets or more; None if no target was missed."""


def run_tests(sides: Sequence[ConvergenceComparison]) -> dict[str, CaseTests]:
    """Test each case; return the results by case id, with p-values adjusted for the number of all tests."""
    steps: dict[str, MeanTest] = {}
    finals: dict[str, MeanTest] = {}
    for same in group_by(sides, lambda side: side.key).values():
        steps |= _test_steps(
            [side for side in same if not side.missed_trainings and not side.reference_misses]
        )
        finals |= _test_finals(same)
    judged = {side.case_id for side in sides if not side.certain_verdict[0] and not side.insufficient_data}
    missed = {
        side.case_id: fisher_exact_tail(
            len(side.missed_trainings),
            len(side.group.trainings),
            side.reference_misses,
            len(side.reference.trainings),
        )
        for side in sides
        if side.missed_trainings
    }
    compared = [(tests, key) for tests in (steps, finals) for key in tests if key in judged]
    lost = [key for key in missed if key in judged]
    worse = holm_adjusted([*(tests[key].p_worse for tests, key in compared), *(missed[key] for key in lost)])
    better = holm_adjusted([tests[key].p_better for tests, key in compared])
    for (tests, key), p_worse, p_better in zip(compared, worse, better, strict=False):
        tests[key] = dataclasses.replace(tests[key], p_worse=p_worse, p_better=p_better)
    missed |= dict(zip(lost, worse[len(compared) :], strict=True))
    return {
        side.case_id: CaseTests(steps.get(side.case_id), finals.get(side.case_id), missed.get(side.case_id))
        for side in sides
    }


def _test_steps(same: Sequence[ConvergenceComparison]) -> dict[str, MeanTest]:
    """Test steps to the target of cases with one reference, on a log scale: a slowdown is a ratio."""
    found = _contrasts(same, lambda training: math.log(training.crossing_step))
    return {side.case_id: _step_test(side, contrast) for side, contrast in found}


def _step_test(side: ConvergenceComparison, contrast: Contrast) -> MeanTest:
    every = side.options.eval_every
    means = _means(
        side, lambda training: float(training.target_row["step"]) if training.target_row else math.inf
    )
    trainings = (*side.group.trainings, *side.reference.trainings)
    # if a training reached the target at its first evaluation, only the end of that interval is known
    vague = every / means[1] if any(training.crossing_step <= every for training in trainings) else 0.0
    return _mean_test(means, contrast, every, math.expm1(contrast.upper_bound(CONFIDENCE)) + vague)


def _test_finals(same: Sequence[ConvergenceComparison]) -> dict[str, MeanTest]:
    """Test final values of cases with one reference, as fractions of the reference's; worse is above."""
    scale = abs(statistics.fmean(same[0].reference.finals or [0.0])) or 1.0
    sign = -1 if same[0].merit.better == "higher" else 1
    return {
        side.case_id: _mean_test(
            _means(side, lambda training: training.final),
            contrast,
            MIN_DIFFERENCE * scale,
            contrast.upper_bound(CONFIDENCE),
        )
        for side, contrast in _contrasts(same, lambda training: sign * training.final / scale)
    }


def _contrasts(
    same: Sequence[ConvergenceComparison], value: Callable[[FinishedTraining], float]
) -> list[tuple[ConvergenceComparison, Contrast]]:
    """Cases with one reference that can be compared with it in *value*, each with its contrast."""
    if not same:
        return []
    arms = {side.case_id: _by_seed(side.group, value) for side in same}
    found = contrasts(arms, _by_seed(same[0].reference, value))
    return [(side, found[side.case_id]) for side in same if side.case_id in found]


def _mean_test(means: tuple[float, float], contrast: Contrast, least: float, most: float) -> MeanTest:
    """Build a test; differences of the means up to *least* are never significant."""
    if abs(means[0] - means[1]) <= least:
        return MeanTest(*means, 0.5, 0.5, most)
    return MeanTest(*means, contrast.p_above, contrast.p_below, most)


def _by_seed(group: TrainingGroup, value: Callable[[FinishedTraining], float]) -> dict[int, float]:
    return {training.seed: value(training) for training in group.trainings}


def _means(side: ConvergenceComparison, value: Callable[[FinishedTraining], float]) -> tuple[float, float]:
    """Mean of the case and of its reference, over the seeds that both have."""
    mine, theirs = (_by_seed(group, value) for group in (side.group, side.reference))
    shared = [seed for seed in mine if seed in theirs]
    return statistics.fmean(mine[seed] for seed in shared), statistics.fmean(theirs[seed] for seed in shared)
