"""Two runs, case by case: what changed, by how much, and whether they may be compared at all.

Two runs are two occasions: a different day, a different neighbour on the machine. Where enough other runs
have the same case, the intervals hold how much those differ; else only how trials of one run do.
A comparison informs; gating needs arms that run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from distbench.analysis.case_summary import COMMUNICATION, LOSS, MEMORY, PACE, THROUGHPUT, CaseSummary
from distbench.analysis.scaling import series_of
from distbench.analysis.settings import facts, meaning, settings, text
from distbench.analysis.statistics.between_run_variance import NO_PAST, Days, Past
from distbench.analysis.statistics.intervals import CONFIDENCE, Interval, intervals
from distbench.core.case import Case
from distbench.core.text import one_line

EFFICIENCY = "efficiency"
STEP = "step_s"
COLUMNS = (THROUGHPUT, EFFICIENCY, STEP, MEMORY, COMMUNICATION, LOSS)
"""What is compared if both runs have it; the efficiency and the step's ratio follow from the throughputs."""
_LEAST = 0.0005
"""A smaller change of a counted number would be shown as 1.000; the gate sees it."""
# both are numbers of 16 digits, from the same window
_SAME_TOKENS = 1 + 1e-9
Direction = Literal["better", "worse", "other"]
Word = Direction | Literal["same", "unknown"]


@dataclass(frozen=True)
class Change:
    """One number of one case in both runs."""

    column: str
    unit: str
    before: Interval
    after: Interval
    ratio: Interval
    """After over before."""
    word: Word
    """same: within the noise, or less than 0.05%; other: different, in a column without a
    better direction; unknown: not equal, and no case has a second trial to measure the noise."""
    days: int = 0
    """Degrees of freedom of what is known of the difference between runs; 0: nothing, so the interval is
    that of the trials alone."""


@dataclass(frozen=True)
class Pair:
    """One case in both runs."""

    name: str
    before: CaseSummary | None
    after: CaseSummary | None
    incomparable: str = ""
    """Why its numbers may not be compared."""
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    """Settings that differ and change the speed or the strategy, not the work."""

    @property
    def id(self) -> str:
        """Id of the case in the second run, where names may repeat; empty if it is in the first alone."""
        return self.after.case.id if self.after else ""

    def change(self, column: str) -> Change | None:
        """Change of *column*; None if it is unknown."""
        return next((change for change in self.changes if change.column == column), None)


def compare(before: Sequence[CaseSummary], after: Sequence[CaseSummary], past: Past = NO_PAST) -> list[Pair]:
    """Every case of two runs, in the order of the second; cases of the first alone at the end.

    Cases are the same if their configuration is (equal ids); those that only have the same name are
    shown side by side and never compared. *past* is how much other runs of them have differed.
    """
    by_id = {row.case.id: row for row in before}
    by_name = {row.case.name: row for row in before}
    mates = [by_id.get(row.case.id) or by_name.get(row.case.name) for row in after]
    taken = {mate.case.id for mate in mates if mate}
    gone = [row for row in before if row.case.id not in taken]
    alone = [Pair(row.case.name, row, None, "only in the first run") for row in gone]
    return with_changes([*map(_pair, mates, after), *alone], past)


def _pair(before: CaseSummary | None, after: CaseSummary) -> Pair:
    name = after.case.name
    if before is None:
        return Pair(name, None, after, "only in the second run")
    if before.case.id != after.case.id:
        return Pair(name, before, after, f"different configuration: {_asked(before.case, after.case)}")
    work, notes = settings_apart(before, after)
    return Pair(name, before, after, unfit(before, after) or work, notes=notes)


def unfit(before: CaseSummary, after: CaseSummary) -> str:
    """Why one of the two has no usable numbers."""
    for row, which in ((before, "first"), (after, "second")):
        if not row.measured:
            reason = f": {one_line(row.reason)}" if row.reason else ""
            return f"{row.status} in the {which} run{reason}"
        if row.degraded:
            return f"measured on a noisy machine in the {which} run: {one_line(row.degraded)}"
        if row.differs:
            return f"not equivalent to its reference in the {which} run"
    return ""


def _asked(before: Case, after: Case) -> str:
    """The first options in which two cases differ."""
    old, new = facts(before.to_json()), facts(after.to_json())
    apart = [key for key in new if old.get(key) != new[key] and key not in ("name", "label")]
    return ", ".join(f"{key} = {new[key]}, was {old.get(key, 'not set')}" for key in apart[:3])


def settings_apart(before: CaseSummary, after: CaseSummary) -> tuple[str, tuple[str, ...]]:
    """Settings of the engines that differ: one that makes it different work, and all others."""
    if before.detail is None or after.detail is None:
        return "", ()
    old, new = settings(before.detail), settings(after.detail)
    work: list[str] = []
    notes: list[str] = []
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key):
            continue
        kind, why = meaning(key, after.detail, before.detail)
        was, now = (text(side[key]) if key in side else "not reported" for side in (old, new))
        # a setting that only one version of distbench reports is not different work
        in_both = key in old and key in new
        (work if kind == "work" and in_both else notes).append(f"{key} = {now}, was {was}: {why}")
    return (f"different work: {work[0]}" if work else ""), tuple(notes)


def with_changes(pairs: list[Pair], past: Past) -> list[Pair]:
    """*pairs* with their numbers; the noise of a number is that of all its trials of one run, and of runs."""
    fit = [
        (pair, pair.before, pair.after)
        for pair in pairs
        if pair.before and pair.after and not pair.incomparable
    ]
    changes: dict[str, list[Change]] = {after.case.id: [] for _, _, after in fit}
    for column in (name for name in COLUMNS if name != EFFICIENCY):
        both = [row for row in fit if row[1].positive(column) and row[2].positive(column)]
        befores, afters = (
            intervals([row.positive(column) for row in side], counted=column not in PACE)
            for side in ([before for _, before, _ in both], [after for _, _, after in both])
        )
        for (_, _, row), before, after in zip(both, befores, afters, strict=True):
            known = past.days.get((row.case.id, column))
            changes[row.case.id].append(
                _change(column, row.columns[column], before, after, known, of=len(both))
            )
    for _, first, second in fit:
        changes[second.case.id] = _of_one_pace(changes[second.case.id], first, second)
    made = [replace(pair, changes=tuple(changes.get(pair.id, ()))) for pair in pairs]
    scaled = _efficiencies(made, past)
    return [replace(pair, changes=(*pair.changes, *scaled.get(pair.id, ()))) for pair in made]


def _of_one_pace(changes: list[Change], before: CaseSummary, after: CaseSummary) -> list[Change]:
    """*changes* with that of the step time judged as that of the throughput is, whose reciprocal it is.

    The means over trials agree, but how much runs differ is known by their medians, and that of an even
    number of times is not the time at that of the paces: two judgements of the same trials could disagree.
    A tool that measured them apart keeps both.
    """
    pace = next((change for change in changes if change.column == THROUGHPUT), None)
    if pace is None or not (_is_of_one_pace(before) and _is_of_one_pace(after)):
        return changes
    ratio = replace(pace.ratio, value=1 / pace.ratio.value)
    return [
        replace(change, ratio=ratio, word=pace.word, days=pace.days) if change.column == STEP else change
        for change in changes
    ]


def _is_of_one_pace(row: CaseSummary) -> bool:
    """Whether step time times throughput is the same number of tokens in all trials."""
    steps, paces = row.positive(STEP), row.positive(THROUGHPUT)
    if not steps or len(steps) != len(paces):
        return False
    tokens = [step * pace for step, pace in zip(steps, paces, strict=True)]
    return max(tokens) < min(tokens) * _SAME_TOKENS


def _efficiencies(pairs: list[Pair], past: Past) -> dict[str, tuple[Change]]:
    """Change of scaling efficiency (``scaling.DEFINITIONS``) of the cases that have one."""
    paces = {pair.id: pace for pair in pairs if (pace := pair.change(THROUGHPUT))}
    changes = {}
    paced = [pair.after.case for pair in pairs if pair.after and pair.id in paces]
    every = series_of(paced)
    count = sum(len(others) for _, (_, *others) in every)
    for _, (first, *others) in every:
        base = paces[first.id]
        for case in others:
            pace = paces[case.id]
            before, after = (
                replace(here.ratio(alone), value=here.value / (case.world_size * alone.value))
                for here, alone in ((pace.before, base.before), (pace.after, base.after))
            )
            described, known = {"unit": "", "better": "higher"}, past.days.get((case.id, EFFICIENCY))
            changes[case.id] = (_change(EFFICIENCY, described, before, after, known, of=count),)
    return changes


def _change(
    column: str, described: dict[str, Any], before: Interval, after: Interval, known: Days | None, of: int
) -> Change:
    """Change of one of as many cases as *of*: the word holds for all of them together."""
    ratio = after.ratio(before)
    if known and ratio.half is not None and known.half(CONFIDENCE) > ratio.half:
        # what runs differ by holds the noise of their trials, too
        ratio = replace(ratio, half=known.half(CONFIDENCE), freedom=known.freedom)
    word: Word = direction(before.value, after.value, described["better"])
    is_apart = abs(math.log(ratio.value)) > (ratio.half_as_one_of(of) or 0.0)
    if not is_apart or abs(after.value / before.value - 1) < _LEAST:
        word = "same"
    elif ratio.half is None:
        word = "unknown"
    return Change(column, described["unit"], before, after, ratio, word, known.freedom if known else 0)


def direction(before: float, after: float, better: str | None) -> Direction:
    """Whether a number improved, given its *better* direction."""
    if better not in ("higher", "lower"):
        return "other"
    return "better" if (after > before) == (better == "higher") else "worse"
