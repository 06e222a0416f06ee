"""Losses of the timed trials of one case, and their comparison with a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np

from distbench.analysis.job_results import ReferenceLosses
from distbench.analysis.losses.rounding_bounds import (
    INSENSITIVE_LIMIT,
    OBSERVED_SPREAD_FACTOR,
    add_loss_resolution,
    loss_limits,
)
from distbench.analysis.settings import design_difference, strategy_description
from distbench.core.case import Case
from distbench.core.units import format_count
from distbench.ipc.trial_files import DRAWS_KEY
from distbench.record import Record
from distbench.strategies.description import IntendedDifference

SAME_LOSSES = "same losses"
DIFFERENT_TRAINING = "trains differently"
CASES_DISAGREE = "cases disagree"
"""Word of several cases that disagree if none of them can be identified as the wrong one."""
NOT_COMPARED = "not compared"
NOT_COMPARABLE = "not comparable"
"""Word of a case whose model draws random numbers during training, whatever its strategy."""
DIFFERENT_BY_DESIGN = "differs by design"
"""Word of a case that exceeds rounding only after the step from which its strategy differs by design."""
INDISTINGUISHABLE = "inconclusive"
"""Word of a case that deviates more than rounding usually causes, in a training in which rounding alone
deviates as much."""

_LOSSES_NOT_KEPT = (
    "the losses of the timed steps were not recorded, and those of the warm-up agree within rounding"
)


@dataclass(frozen=True)
class LossDeviation:
    """First step of a trial beyond rounding, or the step closest to it if there is none."""

    round: int
    step: int
    """From 0 on, warm-up included."""
    loss: float
    expected: float
    of_limit: float
    """Ratio to the allowed deviation; above 1 it is not rounding."""


@dataclass(frozen=True)
class LossComparison:
    """Result of the loss comparison of one case."""

    word: str
    reason: str = ""
    """Name of the reference if there is a deviation; otherwise why nothing can be concluded."""
    trials: int = 0
    """Trials that were compared."""
    trials_beyond: int = 0
    """Number of these trials that are beyond rounding."""
    largest_deviation: LossDeviation | None = None
    """First deviation beyond rounding of any trial; if there is none, the largest."""
    reference: str = ""
    """Id of the reference case; empty: a reference from another kind of job."""
    sensitive_steps: int = 0
    """Steps, from the first on, in which an error of ``INSENSITIVE_LIMIT`` would have been detected."""
    design_reason: str = ""
    """Reason why the strategy changes the training, for the word *differs by design*."""
    remark: str = ""
    """Limitation of the losses that applies to all cases of a group."""

    @property
    def is_different(self) -> bool:
        """True if the case trains differently than it should, or may."""
        return self.word in (DIFFERENT_TRAINING, CASES_DISAGREE)

    @property
    def limit_share(self) -> float:
        """Largest fraction of the allowed deviation in any step."""
        return self.largest_deviation.of_limit if self.largest_deviation else 0.0

    def sentence(self) -> str:
        """The finding with its evidence, as a sentence."""
        worst = self.largest_deviation
        if self.word in (NOT_COMPARED, NOT_COMPARABLE, INDISTINGUISHABLE) or worst is None:
            return f"{self.word}: {self.reason}"
        if self.word == DIFFERENT_BY_DESIGN:
            return (
                f"{self.word}: at step {worst.step} the timed training has a loss of {worst.loss:.6g} and "
                f"{self.reason} {worst.expected:.6g}; {self.design_reason}"
            )
        if self.word == SAME_LOSSES:
            steps = format_count(self.sensitive_steps, "step")
            sight = f"an error of {INSENSITIVE_LIMIT:.0%} would be detected in the first {steps}"
            return f"{self.word} as {self.reason} ({worst.of_limit:.2f} of the allowed deviation; {sight})"
        trials = (
            "" if self.trials_beyond == self.trials else f" in {self.trials_beyond} of {self.trials} trials"
        )
        return (
            f"{self.word}{trials}: from step {worst.step} on, where the timed training has a loss of "
            f"{worst.loss:.6g} and {self.reason} {worst.expected:.6g}, {worst.of_limit:.2g} times the "
            "deviation that rounding explains"
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""
        worst = vars(self.largest_deviation) if self.largest_deviation else None
        facts = {"reason": self.reason, "trials": self.trials, "beyond": self.trials_beyond}
        return {
            **facts,
            "of_limit": self.limit_share if worst else None,
            "worst": worst,
            "sharp": self.sensitive_steps,
        }


@dataclass(frozen=True)
class _TrialComparison:
    """Result of comparing one trial."""

    worst: LossDeviation
    exceeds_usual: bool
    """True if any step deviates more than rounding usually causes."""
    first_insensitive: LossDeviation | None
    """First such step that is within an insensitive limit."""
    sensitive_steps: int
    """Steps, from the first on, with sensitive limits."""


class CaseLosses:
    """Losses of the measured trials of one case, starting with the warm-up."""

    def __init__(self, records: Sequence[Record], perturbed: Sequence[np.ndarray] = ()) -> None:
        """Take the trials, and losses (steps,) of the same training from *perturbed* weights."""
        self.records, self._perturbed = records, perturbed
        self.case: Case = records[0].case

    @property
    def batch_parts(self) -> int:
        """Number of consecutive, equal parts that the global batch is divided into."""
        return self.case.batch.total_micro_batches

    @property
    def design(self) -> IntendedDifference | None:
        """Intended difference of its strategy; None if the training is meant to equal others."""
        return strategy_description(self.case, self.records[0]).by_design

    @property
    def draws_random_numbers(self) -> bool:
        """True if random numbers were drawn during training."""
        return any(record.environment.get(DRAWS_KEY) for record in self.records)

    @property
    def has_timed_losses(self) -> bool:
        """True if more losses than the warm-up's were kept; early records lack them without a metric."""
        return any(record.samples.get("loss") for record in self.records)

    @cached_property
    def curves(self) -> dict[int, np.ndarray]:
        """Losses by round, (steps,); NaN where unknown."""
        curves = {record.round: _loss_array(record) for record in self.records}
        return {number: curve for number, curve in curves.items() if np.isfinite(curve).any()}

    @cached_property
    def median_losses(self) -> np.ndarray:
        """Median over the trials at each step that all have (steps,)."""
        steps = min(map(len, self.curves.values()))
        return np.asarray(np.median([curve[:steps] for curve in self.curves.values()], axis=0))

    @cached_property
    def observed_spread(self) -> np.ndarray | None:
        """Largest distance so far of any two of its trainings from weights perturbed by rounding (steps,).

        The training from its own weights is one of them. Infinite after one diverged; None without any.
        """
        if not self._perturbed:
            return None
        trainings = [self.median_losses, *self._perturbed]
        steps = min(map(len, trainings))
        curves = np.array([curve[:steps] for curve in trainings])
        spread = curves.max(axis=0) - curves.min(axis=0)
        return np.asarray(np.maximum.accumulate(np.where(np.isfinite(spread), spread, np.inf)))

    @property
    def as_reference(self) -> ReferenceLosses:
        """Its losses as a reference for others."""
        return ReferenceLosses(
            self.case.name, self.median_losses, case_id=self.case.id, observed_spread=self.observed_spread
        )

    def compare_with(self, expected: ReferenceLosses) -> LossComparison:
        """Compare the trials with *expected*."""
        found = [
            place
            for number, curve in self.curves.items()
            if (place := self._compare_trial(number, curve, expected)) is not None
        ]
        source, of = expected.name, expected.case_id
        beyond = [place.worst for place in found if place.worst.of_limit > 1]
        if beyond:
            worst = min(beyond, key=lambda place: (place.step, -place.of_limit))
            # the loss of a step is computed before its update
            design = self._design_difference(expected)
            intended = design if design and worst.step > design.since else None
            word, why = (DIFFERENT_BY_DESIGN, intended.why) if intended else (DIFFERENT_TRAINING, "")
            return LossComparison(word, source, len(found), len(beyond), worst, of, design_reason=why)
        if not found:
            return LossComparison(
                NOT_COMPARED, f"no step has a known loss both in this trial and in {source}"
            )
        if not self.has_timed_losses:
            return LossComparison(NOT_COMPARED, _LOSSES_NOT_KEPT)
        if blunt := [place.first_insensitive for place in found if place.first_insensitive]:
            first = min(blunt, key=lambda place: place.step)
            return LossComparison(
                INDISTINGUISHABLE, _indistinguishable_reason(first, expected), len(found), 0, first, of
            )
        worst = max((place.worst for place in found), key=lambda place: place.of_limit)
        seen = (
            ", which rounding of its initial weights changes as much"
            if any(p.exceeds_usual for p in found)
            else ""
        )
        return LossComparison(
            SAME_LOSSES,
            source + seen,
            len(found),
            0,
            worst,
            of,
            min(place.sensitive_steps for place in found),
        )

    def _design_difference(self, expected: ReferenceLosses) -> IntendedDifference | None:
        """Design differences that apply relative to *expected*.

        A check's reference reduces no gradients, so unlike ``rounding_bounds`` it does not cover rounding
        them for that.
        """
        return self.design if expected.limits is None else design_difference(self.case, self.records[0])

    def _compare_trial(
        self, number: int, curve: np.ndarray, expected: ReferenceLosses
    ) -> _TrialComparison | None:
        """Compare the trial of round *number*; None if no step is known in both."""
        count = min(len(curve), len(expected.losses))
        steps = np.flatnonzero(np.isfinite(curve[:count]) & np.isfinite(expected.losses[:count]))
        if not len(steps):
            return None
        known = expected.losses[steps]
        differences = np.abs(curve[steps] - known)
        usual, limits = self._limits(known, steps, expected)
        with np.errstate(divide="ignore"):
            ratios = np.where(differences == 0, 0.0, differences / limits)

        def at(index: int) -> LossDeviation:
            step = int(steps[index])
            return LossDeviation(number, step, float(curve[step]), float(known[index]), float(ratios[index]))

        outside, unusual = np.flatnonzero(ratios > 1), differences > usual
        is_blunt = limits > INSENSITIVE_LIMIT * np.fmax.accumulate(np.abs(known))
        blunt = np.flatnonzero(unusual & is_blunt)
        return _TrialComparison(
            worst=at(outside[0] if len(outside) else int(np.argmax(ratios))),
            exceeds_usual=bool(unusual.any()),
            first_insensitive=at(blunt[0]) if len(blunt) else None,
            sensitive_steps=int(np.argmax([*is_blunt, True])),
        )

    def _limits(
        self, known: np.ndarray, steps: np.ndarray, expected: ReferenceLosses
    ) -> tuple[np.ndarray, np.ndarray]:
        """Usual and applicable limits of rounding deviations from *known* at *steps*."""
        record = self.records[0]
        if expected.limits is not None:
            limits = add_loss_resolution(expected.limits[steps], known, [record])
            return limits, limits
        usual = loss_limits(known, steps, record)
        # an unreproducible training would excuse itself: of two measured spreads, the smaller
        seen = [each for each in (self.observed_spread, expected.observed_spread) if each is not None]
        padded = [np.append(each, np.full(int(steps[-1]) + 1, np.nan))[steps] for each in seen]
        return usual, np.fmax(usual, OBSERVED_SPREAD_FACTOR * np.fmin.reduce(padded)) if padded else usual


def _indistinguishable_reason(first: LossDeviation, expected: ReferenceLosses) -> str:
    """Reason why a case that deviates unusually at *first* can't be distinguished from *expected*."""
    spread = expected.observed_spread if expected.observed_spread is not None else np.array([])
    seen = spread[first.step] if first.step < len(spread) else np.inf
    moves = f"moves by {seen:.2g}" if np.isfinite(seen) else "breaks down"
    return (
        f"at step {first.step} the loss differs by {abs(first.loss - first.expected):.2g} from that "
        f"of {expected.name}, which {moves} by then if only rounding perturbs its initial weights. "
        "An error can't be distinguished from rounding"
    )


def _loss_array(record: Record) -> np.ndarray:
    return np.array(mean_losses(record), dtype=np.float64)


def mean_losses(record: Record) -> list[float | None]:
    """Loss of each step of a trial, from its first warm-up step on, mean over ranks."""
    timed = record.samples.get("loss", [])
    # without warm-up steps a record may lack their list
    ranks = [[*(warm or []), *(rest or [])] for warm, rest in zip_longest(record.warmup_losses, timed)]
    return [_mean(step) for step in zip_longest(*ranks)]


def finite_values(values: Iterable[float | None]) -> list[float]:
    """Finite numbers in *values*."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = finite_values(values)
    return math.fsum(known) / len(known) if len(known) == len(values) else None
