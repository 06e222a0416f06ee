"""The losses of the timed trials of one case, held against those of a training that is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distbench.analysis.job_results import ReferenceLosses
from distbench.analysis.loss_deviation import (
    DIFFERENT_BY_DESIGN,
    DIFFERENT_TRAINING,
    INDISTINGUISHABLE,
    NOT_COMPARED,
    SAME_LOSSES,
    LossComparison,
    LossDeviation,
)
from distbench.analysis.losses import mean_losses
from distbench.analysis.rounding_bounds import (
    INSENSITIVE_LIMIT,
    OBSERVED_SPREAD_FACTOR,
    add_loss_resolution,
    loss_limits,
)
from distbench.analysis.settings import design_difference, strategy_description
from distbench.core.case import Case
from distbench.ipc.trial_files import DRAWS_KEY
from distbench.record import Record
from distbench.strategies.description import IntendedDifference

_LOSSES_NOT_KEPT = "the losses of the timed steps were not kept, and those of the warm-up are within rounding"


@dataclass(frozen=True)
class _TrialComparison:
    """What one trial comes to."""

    worst: LossDeviation
    exceeds_usual: bool
    """Whether it is anywhere further away than rounding usually leads."""
    first_insensitive: LossDeviation | None
    """Where it is that first although it is within a limit that says little."""
    sensitive_steps: int
    """Steps, from the first on, whose limits say more."""


class CaseLosses:
    """The measured trials of one case, whose first steps are the warm-up's."""

    def __init__(self, records: Sequence[Record], perturbed: Sequence[np.ndarray] = ()) -> None:
        """Take the trials, and losses (steps,) of the same training from *perturbed* weights."""
        self.records, self._perturbed = records, perturbed
        self.case: Case = records[0].case

    @property
    def batch_parts(self) -> int:
        """Into how many parts of equal size, one after another, the global batch is divided."""
        return self.case.batch.total_micro_batches

    @property
    def design(self) -> IntendedDifference | None:
        """In what its strategy is another training by design; None: it is meant to be the same as others."""
        return strategy_description(self.case, self.records[0]).by_design

    @property
    def draws_random_numbers(self) -> bool:
        """Whether random numbers were drawn while it trained."""
        return any(record.environment.get(DRAWS_KEY) for record in self.records)

    @property
    def has_timed_losses(self) -> bool:
        """Whether more was kept than the losses of the warm-up: in early records not, without a metric."""
        return any(record.samples.get("loss") for record in self.records)

    @cached_property
    def curves(self) -> dict[int, np.ndarray]:
        """Losses by round, (steps,); NaN where unknown."""
        curves = {record.round: _loss_array(record) for record in self.records}
        return {number: curve for number, curve in curves.items() if np.isfinite(curve).any()}

    @cached_property
    def median_losses(self) -> np.ndarray:
        """Median over the trials of each step that all have (steps,)."""
        steps = min(map(len, self.curves.values()))
        return np.asarray(np.median([curve[:steps] for curve in self.curves.values()], axis=0))

    @cached_property
    def observed_spread(self) -> np.ndarray | None:
        """Largest distance so far of any two of its trainings from weights moved by rounding (steps,).

        That from its own weights is one of them. Infinite from where one broke down; None without any.
        """
        if not self._perturbed:
            return None
        trainings = [self.median_losses, *self._perturbed]
        steps = min(map(len, trainings))
        curves = np.array([curve[:steps] for curve in trainings])
        apart = curves.max(axis=0) - curves.min(axis=0)
        return np.asarray(np.maximum.accumulate(np.where(np.isfinite(apart), apart, np.inf)))

    @property
    def as_reference(self) -> ReferenceLosses:
        """Its losses, for others to be held against."""
        return ReferenceLosses(
            self.case.name, self.median_losses, case_id=self.case.id, observed_spread=self.observed_spread
        )

    def compare_with(self, expected: ReferenceLosses) -> LossComparison:
        """The trials held against *expected*."""
        found = [
            place
            for number, curve in self.curves.items()
            if (place := self._compare_trial(number, curve, expected)) is not None
        ]
        source, of = expected.name, expected.case_id
        beyond = [place.worst for place in found if place.worst.of_limit > 1]
        if beyond:
            worst = min(beyond, key=lambda place: (place.step, -place.of_limit))
            # the loss of a step is that before its update
            design = self._design_difference(expected)
            meant = design if design and worst.step > design.since else None
            word, why = (DIFFERENT_BY_DESIGN, meant.why) if meant else (DIFFERENT_TRAINING, "")
            return LossComparison(word, source, len(found), len(beyond), worst, of, design_reason=why)
        if not found:
            return LossComparison(NOT_COMPARED, f"no step has a known loss both here and in {source}")
        if not self.has_timed_losses:
            return LossComparison(NOT_COMPARED, _LOSSES_NOT_KEPT)
        if blunt := [place.first_insensitive for place in found if place.first_insensitive]:
            first = min(blunt, key=lambda place: place.step)
            return LossComparison(
                INDISTINGUISHABLE, _indistinguishable_reason(first, expected), len(found), 0, first, of
            )
        worst = max((place.worst for place in found), key=lambda place: place.of_limit)
        seen = (
            ", whose own weights moved by rounding lead as far" if any(p.exceeds_usual for p in found) else ""
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
        """What may take it away from *expected*.

        A check's reference reduces no gradients, so it has not seen what it is to round them for that, as
        ``tolerance`` has.
        """
        return self.design if expected.limits is None else design_difference(self.case, self.records[0])

    def _compare_trial(
        self, number: int, curve: np.ndarray, expected: ReferenceLosses
    ) -> _TrialComparison | None:
        """What the trial of round *number* comes to; None if there is no step that both know."""
        count = min(len(curve), len(expected.losses))
        steps = np.flatnonzero(np.isfinite(curve[:count]) & np.isfinite(expected.losses[:count]))
        if not len(steps):
            return None
        known = expected.losses[steps]
        apart = np.abs(curve[steps] - known)
        usual, limits = self._limits(known, steps, expected)
        with np.errstate(divide="ignore"):
            ratios = np.where(apart == 0, 0.0, apart / limits)

        def at(index: int) -> LossDeviation:
            step = int(steps[index])
            return LossDeviation(number, step, float(curve[step]), float(known[index]), float(ratios[index]))

        outside, unusual = np.flatnonzero(ratios > 1), apart > usual
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
        """What rounding usually explains of a deviation from *known* at *steps*, and what it does here."""
        record = self.records[0]
        if expected.limits is not None:
            limits = add_loss_resolution(expected.limits[steps], known, [record])
            return limits, limits
        usual = loss_limits(known, steps, record)
        # a training that is not the same each time would excuse itself: of two that were tried, the calmer
        seen = [each for each in (self.observed_spread, expected.observed_spread) if each is not None]
        padded = [np.append(each, np.full(int(steps[-1]) + 1, np.nan))[steps] for each in seen]
        return usual, np.fmax(usual, OBSERVED_SPREAD_FACTOR * np.fmin.reduce(padded)) if padded else usual


def _indistinguishable_reason(first: LossDeviation, expected: ReferenceLosses) -> str:
    """Why a case that is first unusually far from *expected* in *first* is not told apart from it."""
    spread = expected.observed_spread if expected.observed_spread is not None else np.array([])
    seen = spread[first.step] if first.step < len(spread) else np.inf
    moves = f"moves by {seen:.2g}" if np.isfinite(seen) else "breaks down"
    return (
        f"at step {first.step} the loss is {abs(first.loss - first.expected):.2g} from that of "
        f"{expected.name}, which {moves} by then when its initial weights move by rounding: a mistake "
        "could look the same"
    )


def _loss_array(record: Record) -> np.ndarray:
    return np.array(mean_losses(record), dtype=np.float64)
