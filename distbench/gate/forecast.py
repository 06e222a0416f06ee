"""Forecast of a gate: trials, time, and the smallest detectable change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distbench import plan
from distbench.core.case import Case
from distbench.core.job import MEASURE
from distbench.core.text import listed, one_line
from distbench.core.units import count_text
from distbench.gate.arms import Arm
from distbench.gate.calibration import Calibrated, load
from distbench.gate.case_matching import Match, match
from distbench.gate.metric_rules import rules as rules_of
from distbench.gate.sequential_test import pairs_for
from distbench.record.catalog import usual_times
from distbench.suite.gate import GateRules


@dataclass(frozen=True)
class Row:
    """Forecast for one case."""

    case: str
    trials: tuple[int, int]
    """Fewest and most trials of both arms, including two warm-up trials."""
    minutes: tuple[float, float] | None
    """Shortest and longest time in minutes, by calibration or earlier runs; None: there are none."""
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


def forecast(baseline: Arm, candidate: Arm, out: Path | None = None) -> Forecast:
    """Forecast of a gate of these arms; launches nothing.

    Args:
        out: Folder of runs, whose trials of the same cases tell how long one takes.

    Raises:
        SuiteError: the suite can't work.
    """
    plans = [plan.make(arm.suite) for arm in (baseline, candidate)]
    matched = match(*plans)
    asked = [(MEASURE, slot.candidate.id) for slot in matched.slots]
    took = usual_times(out, asked, candidate.suite.measure) if out else {}
    seconds = {case_id: each for (_, case_id), each in took.items()}
    return forecast_of(baseline, candidate, matched, load(candidate.suite.measure), seconds)


def forecast_of(
    baseline: Arm,
    candidate: Arm,
    matched: Match,
    known: Mapping[str, Calibrated],
    seconds: Mapping[str, float] = MappingProxyType({}),
) -> Forecast:
    """Forecast of a gate of the *matched* cases.

    Args:
        known: Calibrations by case id.
        seconds: That a trial took in earlier runs, by case id.
    """
    rules = candidate.suite.gate
    cases = [slot.candidate for slot in matched.slots]
    most = _most_pairs(rules, cases, known)
    rows = tuple(_row(case, rules, most, known.get(case.id), seconds.get(case.id)) for case in cases)
    notes = []
    if uncalibrated := [case for case in cases if case.id not in known]:
        notes.append(
            f"{count_text(len(uncalibrated), 'case')} not calibrated on this machine: the detectable change "
            "is unknown; run distbench calibrate SUITE."
        )
    notes += _alike(baseline, candidate, matched)
    notes += [f"{one_line(verdict.case)}: {verdict.said}." for verdict in matched.verdicts]
    notes += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in matched.skipped.items()]
    return Forecast(
        title=" ".join(map(one_line, (candidate.suite.name + ":", candidate.title, "vs.", baseline.title))),
        caption=(
            f"{_total(rows)} {min(rules.min_pairs, most)} to {most} pairs of trials per "
            f"case{_budget(rules, most)}; the arms alternate. A flagged case runs a second series. stops: "
            "the smallest true slowdown per step that both series together stop in 90% of gates."
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _total(rows: Sequence[Row]) -> str:
    """Trials and time of all cases together."""
    if not rows:
        return "Nothing to run."
    fewest, most = map(sum, zip(*(row.trials for row in rows), strict=True))
    spans = [row.minutes for row in rows if row.minutes]
    time = "duration unknown: no case is calibrated on this machine, or has run before"
    if spans:
        low, high = map(sum, zip(*spans, strict=True))
        rest = "" if len(spans) == len(rows) else f" for {len(spans)} of them; the others have never run"
        time = (f"{low:.0f} to {high:.0f} minutes" if high >= 1 else "less than a minute") + rest
    return f"Total: {fewest:,} to {most:,} trials of {count_text(len(rows), 'case')}, {time}."


def _alike(baseline: Arm, candidate: Arm, matched: Match) -> list[str]:
    """How many cases are the same in both arms, where the arms differ by the suite alone."""
    same = [slot for slot in matched.slots if slot.baseline.id == slot.candidate.id]
    if baseline.place != candidate.place or not 0 < len(same) < len(matched.slots):
        return []
    others = listed([one_line(slot.candidate.name) for slot in matched.slots if slot not in same])
    return [
        f"Of {count_text(len(matched.slots), 'case')}, {len(same)} the change does not touch; to leave them "
        f"out, name the others with --only GLOB: {others}."
    ]


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


def _row(case: Case, rules: GateRules, most: int, spread: Calibrated | None, seconds: float | None) -> Row:
    least = min(rules.min_pairs, most)
    trials = (2 * (1 + least), 2 * (1 + most))
    if spread is None:
        span = (trials[0] * seconds / 60, trials[1] * seconds / 60) if seconds else None
        return Row(case.name, trials, span, None)
    gated = rules_of(rules, rules.of(case.label, case.name)).items()
    known = spread.deviations
    needed = [
        pairs_for(known[metric], rule.effect, rule.estimator) for metric, rule in gated if metric in known
    ]
    likely = min(max([least, *needed]), most)
    minutes = ((1 + likely) * spread.minutes_per_pair, (1 + most) * spread.minutes_per_pair)
    pace = rules_of(rules, rules.of(case.label, case.name)).get("tokens_per_s")
    if pace is None or most < 2:
        return Row(case.name, trials, minutes, None)
    return Row(
        case.name, trials, minutes, spread.stops("tokens_per_s", replace(pace, least=least, most=most))
    )
