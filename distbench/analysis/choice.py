"""Choose a case for a goal: throughput, memory or energy per token.

``templates/picker.js`` makes the same choice in the page, so its sliders need no server; a test compares
the two over random records. ``candidates.py`` prepares the candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.units import format_bytes
from distbench.prediction import PredictedValue

Goal = Literal["throughput", "memory", "tokens-per-joule"]
GOALS: tuple[Goal, ...] = get_args(Goal)
DEFAULT_MAX_SLOWDOWN = 0.10
"""Default for the goal memory: maximum slowdown relative to the fastest case, as a fraction."""
DEFAULT_TIE_MARGIN = 0.02
"""Default maximum distance of the pick from the best case of a tie, as a fraction of the cautious estimate;
within it the simplest case is picked."""
SETTLED_MARGIN = 0.03
"""Maximum advantage that another case may still have over a settled pick, as a fraction. More than
``DEFAULT_TIE_MARGIN``: a pick at the edge of that margin would take ever more trials to settle."""
MEMORY_TOLERANCE = 0.01
"""Memory that differs by less than this fraction is the same: an allocator rounds, and small buffers vary."""


MEASURE_IT = "predicted: measure it"
"""Mark of cases that were not measured and may be the fastest by prediction."""


@dataclass(frozen=True)
class Candidate:
    """A case that may be recommended."""

    id: str
    name: str
    label: str
    """The strategy's short name with its options."""
    devices: int
    precision: str
    work: str
    """Model and data it trains; cases of different work are never compared."""
    simplicity: int
    """Rank among all candidates, simplest first."""
    speed: ConfidenceInterval | None = None
    """Tokens per second over all devices."""
    memory: float | None = None
    """Bytes that a device must have: the highest peak of any rank in any trial, and ``memory_assumed``."""
    memory_assumed: float = 0.0
    """Bytes of ``memory`` that were not measured but allowed for: GPU memory outside torch's allocator, if
    nothing measured it."""
    joules: ConfidenceInterval | None = None
    """Joules per token."""
    exclusion_reason: str = ""
    """Reason why it is never recommended: it failed, or is not the same training or not the same work."""
    is_noisy: bool = False
    """True if noise is the only reason against it."""
    predicted: PredictedValue | None = None
    """Tokens per second that it may reach, by prediction, so that it is worth a measurement; None: it was
    measured, nothing tells, or it can't be the fastest."""
    predicted_memory: float | None = None
    """Bytes that it needs at least, by prediction; None: unknown, or not predicted."""
    unknown: str = ""
    """Reason why ``speed`` is None."""
    memory_unknown: str = ""
    joules_unknown: str = ""

    def estimate_for(self, goal: Goal) -> ConfidenceInterval | None:
        """Number with an interval by which *goal* ranks; for memory, which has none, the speed."""
        return self.joules if goal == "tokens-per-joule" else self.speed

    def cautious_estimate_for(self, goal: Goal) -> float | None:
        """``estimate_for``, halfway to the worse end of its interval: noisy cases are often best by luck.

        A bound against the winner's curse: A. Swaminathan and T. Joachims (2015), "Batch learning from
        logged bandit feedback through counterfactual risk minimization", J. Machine Learning Research 16.
        """
        interval = self.estimate_for(goal)
        if interval is None:
            return None
        toward = 1 if goal == "tokens-per-joule" else -1
        return interval.value * math.exp(toward * (interval.half_log_width or 0.0) / 2)

    @property
    def memory_text(self) -> str:
        """``72.5 MiB per device``, and how much of that is assumed; only if ``memory`` is known."""
        text = f"{format_bytes(self.memory or 0.0)} per device"
        if not self.memory_assumed:
            return text
        return (
            f"{text} ({format_bytes(self.memory_assumed)} of it an unmeasured allowance for the "
            "CUDA context and libraries)"
        )

    @property
    def predicted_text(self) -> str:
        """Its name, with the tokens/s that it may reach: ``fsdp (990 tokens/s, 850 to 1,150)``."""
        return f"{self.name} {self.exclusion_reason.removeprefix(MEASURE_IT).strip()}"

    def is_dominated_by(self, other: Candidate) -> bool:
        """True if *other* is both faster and leaner by point estimate, however uncertain."""
        known = self.speed and other.speed and self.memory and other.memory
        if not known or self.needs_same_memory_as(other):
            return False
        assert self.speed and other.speed and self.memory and other.memory
        return other.speed.value > self.speed.value and other.memory < self.memory

    def needs_same_memory_as(self, other: Candidate) -> bool:
        """True if both need the same memory up to allocator rounding."""
        less, more = sorted((self.memory or 0.0, other.memory or 0.0))
        return more <= less * (1 + MEMORY_TOLERANCE)


@dataclass(frozen=True)
class Requirements:
    """Goal and constraints of a choice."""

    goal: Goal = "throughput"
    memory: float | None = None
    """Bytes available on a device; None: no limit."""
    devices: int | None = None
    """None: the largest number that was measured."""
    precision: str | None = None
    work: str | None = None
    """None, as for the precision: the value of most candidates, of equally many the first in the suite."""
    avoid: tuple[str, ...] = ()
    """Globs of labels that must not be chosen."""
    within: float = DEFAULT_MAX_SLOWDOWN
    """For the goal memory: maximum slowdown relative to the fastest case that fits, as a fraction."""
    margin: float = DEFAULT_TIE_MARGIN
    """Maximum distance of the pick from the best of its ties, as a fraction of the cautious estimate; within
    it the simplest case is picked."""

    @property
    def unsettled_margin(self) -> float:
        """Advantage of another case over the pick above which the pick is not settled, as a fraction."""
        return max(SETTLED_MARGIN, self.margin)


@dataclass(frozen=True)
class Selection:
    """The recommended case, and the rank or exclusion of all others."""

    requirements: Requirements
    """With devices, precision and work filled in."""
    pick: Candidate | None
    tied: tuple[Candidate, ...]
    """The best case and those that can't be distinguished from it, best first; the pick is the simplest of
    those that are also within ``requirements.margin`` of it by cautious estimate."""
    ranked: tuple[Candidate, ...]
    """Eligible cases, best first."""
    excluded: tuple[tuple[Candidate, str], ...]
    """All others of the same work, precision and devices, with the reason."""
    provisional: tuple[Candidate, ...] = ()
    """All that are eligible but for noise, best first; empty if none of them was measured under noise."""

    @property
    def to_measure(self) -> tuple[Candidate, ...]:
        """Cases that were not measured and may be the fastest by prediction, the most promising first.

        None of them is ever the pick.
        """
        open_ = [one for one, why in self.excluded if one.predicted and why == one.exclusion_reason]
        return tuple(sorted(open_, key=lambda one: -one.predicted.value if one.predicted else 0.0))

    @property
    def dominating(self) -> Candidate | None:
        """The leanest of the cases that beat the pick in both speed and memory by point estimate."""
        pick = self.pick
        beating = [one for one in self.ranked if pick and pick.is_dominated_by(one)]
        return min(beating, key=lambda one: one.memory or 0.0, default=None)

    @property
    def trials_to_settle(self) -> int:
        """Estimated number of further trials per tied case to settle the choice; 0 if settled or unknown.

        Settled: no case is better than the pick by more than ``requirements.unsettled_margin``. Unknown:
        there is no spread yet. Intervals shrink with the square root of the number of trials.
        """
        goal: Goal = "throughput" if self.requirements.goal == "memory" else self.requirements.goal
        mine = self.pick.estimate_for(goal) if self.pick else None
        more = 0
        for rival in (one for one in self.tied if one is not self.pick):
            theirs = rival.estimate_for(goal)
            ratio = theirs.ratio(mine) if theirs and mine else None
            if theirs is None or mine is None or ratio is None or ratio.half_log_width is None:
                continue
            lead = math.log(ratio.value) * (-1 if goal == "tokens-per-joule" else 1)
            allowed = math.log1p(self.requirements.unsettled_margin)
            if lead + ratio.half_log_width > allowed:
                trials = min(mine.trials, theirs.trials)
                needed = trials * (ratio.half_log_width / max(allowed - lead, abs(lead))) ** 2
                more = max(more, math.ceil(needed) - trials)
        return more


def select_case(candidates: Sequence[Candidate], requirements: Requirements) -> Selection:
    """Choose among *candidates* for *requirements*.

    There is no pick while a case that was only measured under noise may be better than it: noise slows cases
    down by different amounts.
    """
    requirements = complete_requirements(candidates, requirements)
    place = requirements.devices, requirements.work, requirements.precision
    asked = [one for one in candidates if (one.devices, one.work, one.precision) == place]
    judged = [(one, _ineligible_reason(one, requirements)) for one in asked]
    fit = [one for one, why in judged if not why]
    left_out = [(one, why) for one, why in judged if why]
    if requirements.goal == "memory":
        least = max((one.speed.value for one in fit if one.speed), default=0.0) * (1 - requirements.within)
        slow = [one for one in fit if one.speed and one.speed.value < least]
        left_out += [(one, "too slow") for one in slow]
        fit = [one for one in fit if one not in slow]
    ranked = sorted(fit, key=lambda one: _sort_key(one, requirements.goal))
    alike = _tied_with_best(ranked, requirements.goal)
    noisy = [one for one, why in left_out if one.is_noisy and why == one.exclusion_reason]
    is_open = any(not alike or _may_beat(one, alike[0], requirements.goal) for one in noisy)
    close = [] if is_open else _within_margin(alike, requirements)
    pick = min(close, key=lambda one: one.simplicity, default=None)
    provisional = sorted([*fit, *noisy], key=lambda one: _sort_key(one, requirements.goal)) if noisy else []
    return Selection(requirements, pick, tuple(alike), tuple(ranked), tuple(left_out), tuple(provisional))


def complete_requirements(candidates: Sequence[Candidate], requirements: Requirements) -> Requirements:
    """Fill in the devices, work and precision that *requirements* leaves open.

    Noise bars no case here: otherwise the answer would move to fewer devices where the machine was quiet.
    """
    devices = requirements.devices
    if devices is None:
        devices = max((one.devices for one in _usable(candidates)), default=None)
    here = _usable([one for one in candidates if one.devices == devices])
    work = _most_common([one.work for one in here]) if requirements.work is None else requirements.work
    here = _usable([one for one in here if one.work == work])
    precision = (
        _most_common([one.precision for one in here])
        if requirements.precision is None
        else requirements.precision
    )
    return replace(requirements, devices=devices, work=work, precision=precision)


def _usable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates with a speed that nothing bars but noise; all of them if there is none."""
    return [one for one in candidates if one.speed and (one.is_noisy or not one.exclusion_reason)] or [
        *candidates
    ]


def _most_common(words: Sequence[str]) -> str | None:
    # max takes the first of equal counts
    return max(words, key=words.count, default=None)


def _ineligible_reason(one: Candidate, requirements: Requirements) -> str:
    """Reason why *one* is not eligible, noise the last; empty if it is."""
    if one.exclusion_reason and not (one.is_noisy or one.predicted):
        return one.exclusion_reason
    if any(fnmatchcase(one.label, glob) for glob in requirements.avoid):
        return "excluded"
    if one.predicted:
        least, room = one.predicted_memory, requirements.memory
        if least is None or room is None or least <= room:
            return one.exclusion_reason
        return f"predicted: does not fit (at least {format_bytes(least)})"
    if one.speed is None:
        return f"throughput unknown: {one.unknown}"
    if requirements.goal == "tokens-per-joule" and one.joules is None:
        return f"energy unknown: {one.joules_unknown}"
    needs_memory = requirements.memory is not None or requirements.goal == "memory"
    if one.memory is None and needs_memory:
        return f"memory unknown: {one.memory_unknown}"
    if one.memory is not None and requirements.memory is not None and one.memory > requirements.memory:
        return "does not fit"
    return one.exclusion_reason


def _sort_key(one: Candidate, goal: Goal) -> float:
    """Sort key of *one*: the best case has the smallest."""
    if goal == "memory":
        return one.memory or 0.0
    cautious = one.cautious_estimate_for(goal)
    assert cautious is not None
    return cautious if goal == "tokens-per-joule" else -cautious


def _may_beat(noisy: Candidate, best: Candidate, goal: Goal) -> bool:
    """True if the *noisy* case may be better than the *best* of the others: it isn't measurably worse."""
    if goal == "memory" and not noisy.needs_same_memory_as(best):
        return (noisy.memory or 0.0) < (best.memory or 0.0)
    theirs, own = noisy.estimate_for(goal), best.estimate_for(goal)
    assert theirs and own
    is_worse = theirs.value > own.value if goal == "tokens-per-joule" else theirs.value < own.value
    is_known = theirs.half_log_width is not None and own.half_log_width is not None
    return not (is_worse and is_known and theirs.differs_from(own))


def _within_margin(tied: Sequence[Candidate], requirements: Requirements) -> list[Candidate]:
    """Tied cases whose cautious estimate is within the margin of the first one's."""
    goal: Goal = "throughput" if requirements.goal == "memory" else requirements.goal
    best = tied[0].cautious_estimate_for(goal) if tied else None
    if best is None:
        return []
    least, most = best * (1 - requirements.margin), best * (1 + requirements.margin)
    return [one for one in tied if (own := one.cautious_estimate_for(goal)) and least <= own <= most]


def _tied_with_best(ranked: list[Candidate], goal: Goal) -> list[Candidate]:
    """The best case and the cases tied with it."""
    if goal == "memory":
        # the fastest of those with the same memory, and the cases tied with it
        lean = [one for one in ranked if one.needs_same_memory_as(ranked[0])]
        return _tied_with_best(sorted(lean, key=lambda one: _sort_key(one, "throughput")), "throughput")
    best = ranked[0].estimate_for(goal) if ranked else None
    return [one for one in ranked if best and (own := one.estimate_for(goal)) and not own.differs_from(best)]
