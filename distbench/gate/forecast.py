"""What a gate would do, before it does it: trials, time, and the smallest change that it could see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench import env, plan
from distbench.analysis.paired import pairs_for
from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.gate.arms import Arm
from distbench.gate.calibration import Calibrated, load
from distbench.gate.matching import Match, match
from distbench.spec.gate import NOISY, Gate, Tolerances


@dataclass(frozen=True)
class Row:
    """What is foreseen for one case."""

    case: str
    trials: tuple[int, int]
    """At least and at most, of both arms, the two of the warm-up among them."""
    minutes: tuple[float, float] | None
    """The same in minutes; None: this machine has not been calibrated for it."""
    sees: float | None
    """The smallest slow-down, as a fraction, that so many pairs at most can tell from none."""


@dataclass(frozen=True)
class Forecast:
    """What a gate would do."""

    title: str
    caption: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        return dataclasses.asdict(self)


def forecast(baseline: Arm, candidate: Arm) -> Forecast:
    """Return what a gate of these arms would do; launches nothing.

    Raises:
        SuiteError: what can't work, known before anything is launched.
    """
    plans = [plan.make(arm.suite, env.detect(arm.suite.device)) for arm in (baseline, candidate)]
    return foreseen(baseline, candidate, match(*plans), load(candidate.suite.measure))


def foreseen(baseline: Arm, candidate: Arm, matched: Match, known: Mapping[str, Calibrated]) -> Forecast:
    """Return what a gate of these cases would do, as far as it is *known*, by id of the case."""
    rules = candidate.suite.gate
    cases = [slot.candidate for slot in matched.slots]
    most = _most_pairs(rules, cases, known)
    rows = tuple(
        _row(case.name, rules, most, rules.of(case.label, case.name), known.get(case.id)) for case in cases
    )
    notes = [f"{one_line(each.case)}: {each.said}." for each in matched.verdicts]
    notes += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in matched.skipped.items()]
    if spans := [row.minutes for row in rows if row.minutes]:
        low, high = (sum(minutes[i] for minutes in spans) for i in (0, 1))
        notes.insert(0, f"In all {low:.0f} to {high:.0f} minutes for {len(spans)} of {len(rows)} cases.")
    if blind := len(rows) - len(spans):
        notes.insert(
            0,
            f"{blind} case{'s' * (blind != 1)} not calibrated on this machine: how long and what can be seen "
            "is not known; distbench calibrate SUITE tells.",
        )
    return Forecast(
        title=" ".join(map(one_line, (candidate.suite.name + ":", candidate.told, "against", baseline.told))),
        caption=(
            f"Pairs of trials, {min(rules.min_pairs, most)} to {most} a case{_budget(rules, most)}, one of "
            "each arm in turn; a flagged case is run as long again. sees: the smallest slow-down of a step "
            "that the pairs allowed can tell from none at 95%."
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _most_pairs(rules: Gate, cases: Sequence[Case], known: Mapping[str, Calibrated]) -> int:
    """Return the pairs of each case that pairs and minutes allow, as far as the time of a pair is known."""
    if rules.minutes is None or not all(case.id in known for case in cases):
        return rules.max_pairs
    # the cases take turns, and one pair of each is the warm-up
    a_round = sum(known[case.id].minutes_per_pair for case in cases)
    return max(0, min(rules.max_pairs, int(rules.minutes / a_round) - 1)) if a_round else rules.max_pairs


def _budget(rules: Gate, most: int) -> str:
    if rules.minutes is None:
        return ""
    if most < rules.max_pairs:
        return f" (what gate.minutes = {rules.minutes:g} leaves of max_pairs = {rules.max_pairs})"
    return f" (and no longer than gate.minutes = {rules.minutes:g})"


def _row(name: str, rules: Gate, most: int, own: Tolerances, told: Calibrated | None) -> Row:
    least = min(rules.min_pairs, most)
    trials = (2 * (1 + least), 2 * (1 + most))
    if told is None:
        return Row(name, trials, None, None)
    likely = least
    for metric in NOISY:
        limit = getattr(own, metric)
        if limit is not None and metric in told.deviations:
            likely = max(likely, pairs_for(told.deviations[metric], limit))
    pairs = (1 + min(likely, most), 1 + most)
    return Row(
        name,
        trials,
        (pairs[0] * told.minutes_per_pair, pairs[1] * told.minutes_per_pair),
        told.smallest("tokens_per_s", most) if most > 1 else None,
    )
