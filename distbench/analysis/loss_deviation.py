"""The losses of the timed trials of one case, held against those of a training that is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from distbench.analysis.losses import losses_of
from distbench.analysis.tolerance import allowed, resolution
from distbench.case import Case
from distbench.record import Record
from distbench.trial import DRAWS

SAME = "same losses"
DIFFERS = "another training"
DISAGREE = "cases disagree"
"""Word of all of several cases of which none can be named as the odd one."""
UNKNOWN = "not compared"

_NOT_KEPT = "the losses of the timed steps were not kept, and those of the warm-up are within rounding"


@dataclass(frozen=True, eq=False)
class Expected:
    """Losses of a training that is trusted, from its first step on, and how far rounding leads from them."""

    source: str
    """What it is, for people: ``single/ws1 of the check``."""
    losses: np.ndarray
    """Of each step (steps,); NaN where unknown."""
    allowed: np.ndarray | None = None
    """Deviation that rounding explains at each step (steps,), in the unit of the loss; None: ``tolerance``
    says."""


@dataclass(frozen=True)
class Deviation:
    """Where a trial is first beyond what rounding explains; if it never is, where it is closest to that."""

    round: int
    step: int
    """From 0 on, the warm-up included."""
    loss: float
    expected: float
    of_limit: float
    """Ratio over the allowed deviation; above 1 it is not rounding."""


@dataclass(frozen=True)
class TimedLosses:
    """What is found of one case."""

    word: str
    reason: str = ""
    """Beside a deviation: what it is held against, or why nothing can be said."""
    trials: int = 0
    """Trials that were compared."""
    beyond: int = 0
    """Those of them that are beyond rounding."""
    worst: Deviation | None = None
    """The first deviation beyond rounding of any trial; if there is none, the furthest."""

    @property
    def is_other(self) -> bool:
        """Whether the case is not the training that it should be, or may not be."""
        return self.word in (DIFFERS, DISAGREE)

    @property
    def furthest(self) -> float:
        """The largest fraction of the allowed deviation that any step takes."""
        return self.worst.of_limit if self.worst else 0.0

    def sentence(self) -> str:
        """The finding with what it rests on."""
        worst = self.worst
        if self.word == UNKNOWN or worst is None:
            return f"{self.word}: {self.reason}"
        if self.word == SAME:
            return f"{self.word} as {self.reason} ({worst.of_limit:.2f} of the allowed deviation)"
        trials = "" if self.beyond == self.trials else f" in {self.beyond} of {self.trials} trials"
        return (
            f"{self.word}{trials}: from step {worst.step} on, where the timed training has a loss of "
            f"{worst.loss:.6g} and {self.reason} {worst.expected:.6g}, {worst.of_limit:.2g} times the "
            "deviation that rounding explains"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        worst = vars(self.worst) if self.worst else None
        told = {"reason": self.reason, "trials": self.trials, "beyond": self.beyond}
        return {**told, "of_limit": self.furthest if worst else None, "worst": worst}


class Timed:
    """The measured trials of one case, whose first steps are the warm-up's."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.case: Case = records[0].case

    @property
    def parts(self) -> int:
        """Into how many parts of equal size, one after another, the global batch is divided."""
        return self.case.world_size * self.case.batch.gradient_accumulation_steps

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

    def against(self, expected: Expected) -> TimedLosses:
        """The trials held against *expected*."""
        found = [
            place
            for number, curve in self.curves.items()
            if (place := self._deviation(number, curve, expected)) is not None
        ]
        beyond = [place for place in found if place.of_limit > 1]
        if beyond:
            worst = min(beyond, key=lambda place: (place.step, -place.of_limit))
            return TimedLosses(DIFFERS, expected.source, len(found), len(beyond), worst)
        if not found:
            return TimedLosses(UNKNOWN, f"no step has a known loss both here and in {expected.source}")
        if not self.has_timed_losses:
            return TimedLosses(UNKNOWN, _NOT_KEPT)
        worst = max(found, key=lambda place: place.of_limit)
        return TimedLosses(SAME, expected.source, len(found), 0, worst)

    def _deviation(self, number: int, curve: np.ndarray, expected: Expected) -> Deviation | None:
        """Deviation of the trial of round *number*; None if there is no step that both know."""
        ratios, steps = self._ratios(curve, expected)
        if not len(steps):
            return None
        outside = np.flatnonzero(ratios > 1)
        at = outside[0] if len(outside) else int(np.argmax(ratios))
        step = int(steps[at])
        return Deviation(number, step, float(curve[step]), float(expected.losses[step]), float(ratios[at]))

    def _ratios(self, curve: np.ndarray, expected: Expected) -> tuple[np.ndarray, np.ndarray]:
        """Deviation over what is allowed, and the step, of each step that both know."""
        count = min(len(curve), len(expected.losses))
        mine, theirs = curve[:count], expected.losses[:count]
        steps = np.flatnonzero(np.isfinite(mine) & np.isfinite(theirs))
        apart = np.abs(mine - theirs)[steps]
        known, record = theirs[steps], self.records[0]
        if expected.allowed is None:
            limits = allowed(known, steps, record)
        else:
            limits = np.fmax(expected.allowed[steps], resolution(known, record))
        with np.errstate(divide="ignore"):
            return np.where(apart == 0, 0.0, apart / limits), steps


def _curve(record: Record) -> np.ndarray:
    return np.array(losses_of(record), dtype=np.float64)
