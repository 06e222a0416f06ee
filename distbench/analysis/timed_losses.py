"""Whether the steps that were timed are those of the same training: their losses, held against a reference's.

A check looks at every step, and a look may heal what it looks for: a gathered parameter has been waited
for. The trials that are timed train the same batches from the same weights with nothing in the way, so their
losses are evidence that costs nothing. They are held against

1. a training that another kind of job vouches for (``Kind.expected_losses``): the reference of the
   equivalence check, as far as it trained, and what rounding was seen to do to it there;
2. over all steps, the ``single`` cases of the same work, one process without a wrapper; where there is none,
   what most of the cases of the same work agree on. Rounding is then bounded by ``tolerance``.

Cases of the same work differ only in how it is divided and kept (``CHOICES`` and the number of devices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from distbench.analysis.losses import losses_of
from distbench.analysis.tolerance import allowed, resolution
from distbench.case import CHOICES, Case
from distbench.grouping import grouped
from distbench.record import Record, Status
from distbench.strategies.base import SINGLE
from distbench.trial import DRAWS

SAME = "same losses"
DIFFERS = "another training"
DISAGREE = "cases disagree"
"""Word of all of several cases of which none can be named as the odd one."""
UNKNOWN = "not compared"

_DRAWS = "the model draws random numbers while it trains, other ones on every rank"
_NOT_KEPT = "the losses of the timed steps were not kept, and those of the warm-up are within rounding"
_NO_MEAN = (
    "the loss of a batch may not be the mean over its parts (masked tokens, batch norm), or it is a mistake; "
    "--check tells"
)


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


def timed_losses(records: Sequence[Record], expected: Mapping[str, Expected]) -> dict[str, TimedLosses]:
    """What the losses of measured trials say, by case id; nothing of a case without anything to compare with.

    *expected* are the trusted trainings by case id.
    """
    measured = [record for record in records if record.status is Status.MEASURED]
    cases = [_Timed(mine) for mine in grouped(measured, lambda record: record.case_id).values()]
    found: dict[str, TimedLosses] = {}
    for peers in grouped(cases, lambda timed: timed.case.work((*CHOICES, "world_size"))).values():
        found |= _of_peers(peers, expected)
    return found


class _Timed:
    """The measured trials of one case."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.case: Case = records[0].case

    @property
    def parts(self) -> int:
        """Into how many parts of equal size, one after another, the global batch is divided."""
        return self.case.world_size * self.case.batch.gradient_accumulation_steps

    @property
    def draws(self) -> bool:
        return any(record.environment.get(DRAWS) for record in self.records)

    @property
    def has_timed_losses(self) -> bool:
        """False of earlier records, which had those of their warm-up alone if no metric kept the others."""
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
            return TimedLosses(
                UNKNOWN, f"it has no step of which the loss is known, as is that of {expected.source}"
            )
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


def _of_peers(peers: Sequence[_Timed], expected: Mapping[str, Expected]) -> dict[str, TimedLosses]:
    """Findings on the cases of one work: by what is vouched for, and of those within it by each other."""
    found = {timed.case.id: TimedLosses(UNKNOWN, _DRAWS) for timed in peers if timed.draws}
    known = [timed for timed in peers if timed.curves and not timed.draws]
    vouched = {
        timed.case.id: timed.against(expected[timed.case.id]) for timed in known if timed.case.id in expected
    }
    others = [timed for timed in known if timed.case.id not in vouched or not vouched[timed.case.id].is_other]
    among = _among(others)
    for timed in known:
        own, theirs = vouched.get(timed.case.id), among.get(timed.case.id)
        # those that what is vouched for calls another training are not among the others
        if theirs and (own is None or own.word == UNKNOWN or theirs.is_other):
            found[timed.case.id] = theirs
        elif own:
            found[timed.case.id] = own
    return found


def _among(cases: Sequence[_Timed]) -> dict[str, TimedLosses]:
    """Findings on *cases* of the same work by nothing but each other."""
    reference = _single(cases) or _consensus(cases)
    if reference is None:
        return _by_parts(cases)
    found = {timed.case.id: timed.against(reference) for timed in cases}
    agreed = {timed.parts for timed in cases if found[timed.case.id].word == SAME}
    return found | _divided([timed for timed in cases if timed.parts not in agreed], found, reference)


def _single(cases: Sequence[_Timed]) -> Expected | None:
    """What a plain process trained, if its trials agree."""
    for timed in cases:
        if timed.case.strategy.name == SINGLE:
            own = Expected(timed.case.name, timed.middle)
            return None if timed.against(own).is_other else own
    return None


def _consensus(cases: Sequence[_Timed]) -> Expected | None:
    """What more than half of *cases* trained, all their trials; None if there is no such majority."""
    ways = [Expected(timed.case.name, timed.middle) for timed in cases]
    support = [sum(timed.against(way).word == SAME for timed in cases) for way in ways]
    most = max(support, default=0)
    if most < 2 or 2 * most <= len(cases):
        return None
    way = ways[support.index(most)]
    return Expected(f"most of the {len(cases)} cases of the same work", way.losses)


def _divided(
    cases: Sequence[_Timed], found: Mapping[str, TimedLosses], reference: Expected
) -> dict[str, TimedLosses]:
    """Those of *cases* that divide the batch alike and agree with each other, but not with *reference*.

    Where that shows before the first update, and several strategies have it, a loss that is not the mean over
    parts of the batch explains it as well as a mistake that all of them share.
    """
    told: dict[str, TimedLosses] = {}
    for alike in grouped(cases, lambda timed: timed.parts).values():
        early = [timed for timed in alike if (worst := found[timed.case.id].worst) and worst.step == 0]
        way = _consensus(early)
        agreeing = [timed for timed in early if way and timed.against(way).word == SAME]
        if len({timed.case.strategy.name for timed in agreeing}) > 1:
            reason = (
                f"{len(agreeing)} cases that divide the batch alike agree, but not with {reference.source}"
            )
            told |= {timed.case.id: TimedLosses(UNKNOWN, f"{reason}: {_NO_MEAN}") for timed in agreeing}
    return told


def _by_parts(cases: Sequence[_Timed]) -> dict[str, TimedLosses]:
    """Findings on *cases* without a majority: only those that divide the batch alike surely disagree."""
    found: dict[str, TimedLosses] = {}
    for timed in cases:
        against = [
            (other, timed.against(Expected(other.case.name, other.middle)))
            for other in cases
            # of a case alone its own trials
            if other is not timed or len(cases) == 1
        ]
        apart = [(other, one) for other, one in against if one.is_other]
        sure = [
            one for other, one in apart if other.parts == timed.parts or (one.worst and one.worst.step > 0)
        ]
        if sure:
            found[timed.case.id] = replace(sure[0], word=DISAGREE)
        elif apart:
            other, _ = apart[0]
            found[timed.case.id] = TimedLosses(UNKNOWN, f"not as {other.case.name}: {_NO_MEAN}")
        elif len(cases) > 1:
            found[timed.case.id] = against[0][1]
    return found


def _curve(record: Record) -> np.ndarray:
    return np.array(losses_of(record), dtype=np.float64)
