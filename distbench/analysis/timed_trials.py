"""The losses of the timed trials of one case, held against those of a training that is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distbench.analysis.job_results import ExpectedLosses
from distbench.analysis.loss_deviation import (
    BLURRED,
    BY_DESIGN,
    DIFFERS,
    SAME,
    UNKNOWN,
    Deviation,
    TimedLosses,
)
from distbench.analysis.losses import losses_of
from distbench.analysis.rounding_bounds import BLUNT, SEEN, allowed, resolved
from distbench.analysis.settings import description_of, design_of
from distbench.core.case import Case
from distbench.ipc.trial_files import DRAWS
from distbench.record import Record
from distbench.strategies.description import ByDesign

_NOT_KEPT = "the losses of the timed steps were not kept, and those of the warm-up are within rounding"


@dataclass(frozen=True)
class _Place:
    """What one trial comes to."""

    worst: Deviation
    unusual: bool
    """Whether it is anywhere further away than rounding usually leads."""
    blunt: Deviation | None
    """Where it is that first although it is within a limit that says little."""
    sharp: int
    """Steps, from the first on, whose limits say more."""


class Timed:
    """The measured trials of one case, whose first steps are the warm-up's."""

    def __init__(self, records: Sequence[Record], perturbed: Sequence[np.ndarray] = ()) -> None:
        """Take the trials, and losses (steps,) of the same training from *perturbed* weights."""
        self.records, self._perturbed = records, perturbed
        self.case: Case = records[0].case

    @property
    def parts(self) -> int:
        """Into how many parts of equal size, one after another, the global batch is divided."""
        return self.case.batch.parts

    @property
    def design(self) -> ByDesign | None:
        """In what its strategy is another training by design; None: it is meant to be the same as others."""
        return description_of(self.case, self.records[0]).by_design

    @property
    def draws(self) -> bool:
        """Whether random numbers were drawn while it trained."""
        return any(record.environment.get(DRAWS) for record in self.records)

    @property
    def has_timed_losses(self) -> bool:
        """Whether more was kept than the losses of the warm-up: in early records not, without a metric."""
        return any(record.samples.get("loss") for record in self.records)

    @cached_property
    def curves(self) -> dict[int, np.ndarray]:
        """Losses by round, (steps,); NaN where unknown."""
        curves = {record.round: _curve(record) for record in self.records}
        return {number: curve for number, curve in curves.items() if np.isfinite(curve).any()}

    @cached_property
    def middle(self) -> np.ndarray:
        """Median over the trials of each step that all have (steps,)."""
        steps = min(map(len, self.curves.values()))
        return np.asarray(np.median([curve[:steps] for curve in self.curves.values()], axis=0))

    @cached_property
    def spread(self) -> np.ndarray | None:
        """Largest distance so far of any two of its trainings from weights moved by rounding (steps,).

        That from its own weights is one of them. Infinite from where one broke down; None without any.
        """
        if not self._perturbed:
            return None
        trainings = [self.middle, *self._perturbed]
        steps = min(map(len, trainings))
        curves = np.array([curve[:steps] for curve in trainings])
        apart = curves.max(axis=0) - curves.min(axis=0)
        return np.asarray(np.maximum.accumulate(np.where(np.isfinite(apart), apart, np.inf)))

    @property
    def trained(self) -> ExpectedLosses:
        """Its losses, for others to be held against."""
        return ExpectedLosses(self.case.name, self.middle, case_id=self.case.id, spread=self.spread)

    def against(self, expected: ExpectedLosses) -> TimedLosses:
        """The trials held against *expected*."""
        found = [
            place
            for number, curve in self.curves.items()
            if (place := self._place(number, curve, expected)) is not None
        ]
        source, of = expected.source, expected.case_id
        beyond = [place.worst for place in found if place.worst.of_limit > 1]
        if beyond:
            worst = min(beyond, key=lambda place: (place.step, -place.of_limit))
            # the loss of a step is that before its update
            design = self._design(expected)
            meant = design if design and worst.step > design.since else None
            word, why = (BY_DESIGN, meant.why) if meant else (DIFFERS, "")
            return TimedLosses(word, source, len(found), len(beyond), worst, of, design=why)
        if not found:
            return TimedLosses(UNKNOWN, f"no step has a known loss both here and in {source}")
        if not self.has_timed_losses:
            return TimedLosses(UNKNOWN, _NOT_KEPT)
        if blunt := [place.blunt for place in found if place.blunt]:
            first = min(blunt, key=lambda place: place.step)
            return TimedLosses(BLURRED, _blurred(first, expected), len(found), 0, first, of)
        worst = max((place.worst for place in found), key=lambda place: place.of_limit)
        seen = ", whose own weights moved by rounding lead as far" if any(p.unusual for p in found) else ""
        return TimedLosses(SAME, source + seen, len(found), 0, worst, of, min(place.sharp for place in found))

    def _design(self, expected: ExpectedLosses) -> ByDesign | None:
        """What may take it away from *expected*.

        A check's reference reduces no gradients, so it has not seen what it is to round them for that, as
        ``tolerance`` has.
        """
        return self.design if expected.allowed is None else design_of(self.case, self.records[0])

    def _place(self, number: int, curve: np.ndarray, expected: ExpectedLosses) -> _Place | None:
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

        def at(index: int) -> Deviation:
            step = int(steps[index])
            return Deviation(number, step, float(curve[step]), float(known[index]), float(ratios[index]))

        outside, unusual = np.flatnonzero(ratios > 1), apart > usual
        is_blunt = limits > BLUNT * np.fmax.accumulate(np.abs(known))
        blunt = np.flatnonzero(unusual & is_blunt)
        return _Place(
            worst=at(outside[0] if len(outside) else int(np.argmax(ratios))),
            unusual=bool(unusual.any()),
            blunt=at(blunt[0]) if len(blunt) else None,
            sharp=int(np.argmax([*is_blunt, True])),
        )

    def _limits(
        self, known: np.ndarray, steps: np.ndarray, expected: ExpectedLosses
    ) -> tuple[np.ndarray, np.ndarray]:
        """What rounding usually explains of a deviation from *known* at *steps*, and what it does here."""
        record = self.records[0]
        if expected.allowed is not None:
            limits = resolved(expected.allowed[steps], known, [record])
            return limits, limits
        usual = allowed(known, steps, record)
        # a training that is not the same each time would excuse itself: of two that were tried, the calmer
        seen = [each for each in (self.spread, expected.spread) if each is not None]
        padded = [np.append(each, np.full(int(steps[-1]) + 1, np.nan))[steps] for each in seen]
        return usual, np.fmax(usual, SEEN * np.fmin.reduce(padded)) if padded else usual


def _blurred(first: Deviation, expected: ExpectedLosses) -> str:
    """Why a case that is first unusually far from *expected* in *first* is not told apart from it."""
    spread = expected.spread if expected.spread is not None else np.array([])
    seen = spread[first.step] if first.step < len(spread) else np.inf
    moves = f"moves by {seen:.2g}" if np.isfinite(seen) else "breaks down"
    return (
        f"at step {first.step} the loss is {abs(first.loss - first.expected):.2g} from that of "
        f"{expected.source}, which {moves} by then when its initial weights move by rounding: a mistake "
        "could look the same"
    )


def _curve(record: Record) -> np.ndarray:
    return np.array(losses_of(record), dtype=np.float64)
