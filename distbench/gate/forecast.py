"""Forecast of a gate: trials, time, and the smallest detectable change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench import plan
from distbench.analysis.paired import pairs_for
from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.gate.arms import Arm
from distbench.gate.calibration import Calibrated, load
from distbench.gate.judging import rules as rules_of
from distbench.gate.matching import Match, match
from distbench.suite.gate import GateRules
from distbench.units import count_text


@dataclass(frozen=True)
class Row:
    """Forecast for one case."""

    case: str
    trials: tuple[int, int]
    """Fewest and most trials of both arms, including two warm-up trials."""
    minutes: tuple[float, float] | None
    """Shortest and longest time in minutes; None: not calibrated on this machine."""
    sees: float | None
    """Smallest slowdown, as a fraction, that the gate stops in 90%, its second series included."""


@dataclass(frozen=True)
class Forecast:
    """Forecast of a gate."""

    title: str
    caption: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The forecast as plain JSON types."""
        return dataclasses.asdict(self)


def forecast(baseline: Arm, candidate: Arm) -> Forecast:
    """Forecast of a gate of these arms; launches nothing.

    Raises:
        SuiteError: the suite can't work.
    """
    plans = [plan.make(arm.suite) for arm in (baseline, candidate)]
    return forecast_of(baseline, candidate, match(*plans), load(candidate.suite.measure))


def forecast_of(baseline: Arm, candidate: Arm, matched: Match, known: Mapping[str, Calibrated]) -> Forecast:
    """Forecast of a gate of the *matched* cases; *known* are calibrations by case id."""
    rules = candidate.suite.gate
    cases = [slot.candidate for slot in matched.slots]
    most = _most_pairs(rules, cases, known)
    rows = tuple(_row(case, rules, most, known.get(case.id)) for case in cases)
    notes = []
    spans = [row.minutes for row in rows if row.minutes]
    if unknown := len(rows) - len(spans):
        notes.append(
            f"{count_text(unknown, 'case')} not calibrated on this machine: duration and detectable "
            "change are unknown; run distbench calibrate SUITE."
        )
    if spans:
        low, high = map(sum, zip(*spans, strict=True))
        notes.append(f"Total: {low:.0f} to {high:.0f} minutes for {len(spans)} of {len(rows)} cases.")
    notes += [f"{one_line(verdict.case)}: {verdict.said}." for verdict in matched.verdicts]
    notes += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in matched.skipped.items()]
    return Forecast(
        title=" ".join(map(one_line, (candidate.suite.name + ":", candidate.title, "vs.", baseline.title))),
        caption=(
            f"{min(rules.min_pairs, most)} to {most} pairs of trials per case{_budget(rules, most)}; the "
            "arms alternate. A flagged case runs a second series. stops: the smallest true slowdown per step "
            "that both series together stop in 90% of gates."
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _most_pairs(rules: GateRules, cases: Sequence[Case], known: Mapping[str, Calibrated]) -> int:
    """Pairs per case that ``max_pairs`` and ``minutes`` allow, if the time per pair is known."""
    if rules.minutes is None or not all(case.id in known for case in cases):
        return rules.max_pairs
    # the cases alternate, and one pair of each is the warm-up
    minutes = sum(known[case.id].minutes_per_pair for case in cases)
    return max(0, min(rules.max_pairs, int(rules.minutes / minutes) - 1)) if minutes else rules.max_pairs


def _budget(rules: GateRules, most: int) -> str:
    if rules.minutes is None:
        return ""
    if most < rules.max_pairs:
        return f" (max_pairs = {rules.max_pairs}, limited by gate.minutes = {rules.minutes:g})"
    return f" (within gate.minutes = {rules.minutes:g})"


def _row(case: Case, rules: GateRules, most: int, spread: Calibrated | None) -> Row:
    least = min(rules.min_pairs, most)
    trials = (2 * (1 + least), 2 * (1 + most))
    if spread is None:
        return Row(case.name, trials, None, None)
    gated = rules_of(rules, rules.of(case.label, case.name)).items()
    known = spread.deviations
    needed = [pairs_for(known[metric], rule.effect) for metric, rule in gated if metric in known]
    likely = min(max([least, *needed]), most)
    minutes = ((1 + likely) * spread.minutes_per_pair, (1 + most) * spread.minutes_per_pair)
    pace = rules_of(rules, rules.of(case.label, case.name)).get("tokens_per_s")
    if pace is None or most < 2:
        return Row(case.name, trials, minutes, None)
    return Row(
        case.name, trials, minutes, spread.stops("tokens_per_s", replace(pace, least=least, most=most))
    )
