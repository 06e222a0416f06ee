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
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count
from distbench.gate.arms import GateArm
from distbench.gate.calibration import CaseCalibration, load_calibrations
from distbench.gate.case_matching import CaseMatch, match_cases
from distbench.gate.metric_rules import paired_rules as rules_of
from distbench.gate.sequential_test import pairs_needed
from distbench.record.catalog import median_durations
from distbench.suite.gate import GateRules


@dataclass(frozen=True)
class CaseForecast:
    """Forecast for one case."""

    case: str
    trials: tuple[int, int]
    """Fewest and most trials of both arms, including two warm-up trials."""
    minutes: tuple[float, float] | None
    """Shortest and longest time in minutes, by calibration or earlier runs; None: there are none."""
    sees: float | None
    """Smallest slowdown, as a fraction, that the gate stops in 90% of runs, its second series included."""


@dataclass(frozen=True)
class GateForecast:
    """Forecast of a gate."""

    title: str
    caption: str
    rows: tuple[CaseForecast, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The forecast as plain JSON types."""
        return dataclasses.asdict(self)


def forecast(baseline: GateArm, candidate: GateArm, out: Path | None = None) -> GateForecast:
    """Forecast of a gate of these arms; launches nothing.

    Args:
        out: Folder of runs; trials of the same cases in it give the duration of a trial.

    Raises:
        SuiteError: the suite can't work.
    """
    plans = [plan.make_plan(arm.suite) for arm in (baseline, candidate)]
    matched = match_cases(*plans)
    asked = [(MEASURE, slot.candidate.id) for slot in matched.slots]
    took = median_durations(out, asked, candidate.suite.measure) if out else {}
    seconds = {case_id: each for (_, case_id), each in took.items()}
    return forecast_matched(baseline, candidate, matched, load_calibrations(candidate.suite.measure), seconds)


def forecast_matched(
    baseline: GateArm,
    candidate: GateArm,
    matched: CaseMatch,
    known: Mapping[str, CaseCalibration],
    seconds: Mapping[str, float] = MappingProxyType({}),
) -> GateForecast:
    """Forecast of a gate of the *matched* cases.

    Args:
        known: Calibrations by case id.
        seconds: Duration of a trial in earlier runs, by case id.
    """
    rules = candidate.suite.gate
    cases = [slot.candidate for slot in matched.slots]
    most = _affordable_pairs(rules, cases, known)
    rows = tuple(
        _case_forecast(case, rules, most, known.get(case.id), seconds.get(case.id)) for case in cases
    )
    notes = []
    if uncalibrated := [case for case in cases if case.id not in known]:
        notes.append(
            f"{format_count(len(uncalibrated), 'case')} not calibrated on this machine: the detectable "
            "change is unknown; run distbench calibrate SUITE."
        )
    notes += _unchanged_cases_note(baseline, candidate, matched)
    notes += [f"{one_line(verdict.case)}: {verdict.said}." for verdict in matched.verdicts]
    notes += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in matched.skipped.items()]
    return GateForecast(
        title=" ".join(map(one_line, (candidate.suite.name + ":", candidate.title, "vs.", baseline.title))),
        caption=(
            f"{_total_text(rows)} {min(rules.min_pairs, most)} to {most} pairs of trials per "
            f"case{_budget_text(rules, most)}; the arms alternate. A flagged case runs a second series. "
            "stops: the smallest true slowdown per step that both series together detect in 90% of "
            "gates."
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _total_text(rows: Sequence[CaseForecast]) -> str:
    """Trials and time of all cases together."""
    if not rows:
        return "Nothing to run."
    fewest, most = map(sum, zip(*(row.trials for row in rows), strict=True))
    spans = [row.minutes for row in rows if row.minutes]
    time = "duration unknown: no case has been calibrated on this machine or has run before"
    if spans:
        low, high = map(sum, zip(*spans, strict=True))
        rest = "" if len(spans) == len(rows) else f" for {len(spans)} of them; the others have never run"
        time = (f"{low:.0f} to {high:.0f} minutes" if high >= 1 else "less than a minute") + rest
    return f"Total: {fewest:,} to {most:,} trials of {format_count(len(rows), 'case')}, {time}."


def _unchanged_cases_note(baseline: GateArm, candidate: GateArm, matched: CaseMatch) -> list[str]:
    """Note the cases that are the same in both arms, if the arms differ by the suite alone."""
    same = [slot for slot in matched.slots if slot.baseline.id == slot.candidate.id]
    if baseline.target != candidate.target or not 0 < len(same) < len(matched.slots):
        return []
    others = join_limited([one_line(slot.candidate.name) for slot in matched.slots if slot not in same])
    return [
        f"{len(same)} of {format_count(len(matched.slots), 'case')} are identical in both versions. To "
        f"skip them, select the others with --only GLOB: {others}."
    ]


def _affordable_pairs(rules: GateRules, cases: Sequence[Case], known: Mapping[str, CaseCalibration]) -> int:
    """Pairs per case that ``max_pairs`` and ``minutes`` allow, if the time per pair is known."""
    if rules.minutes is None or not all(case.id in known for case in cases):
        return rules.max_pairs
    # the cases alternate, and one pair of each is the warm-up
    minutes = sum(known[case.id].minutes_per_pair for case in cases)
    return max(0, min(rules.max_pairs, int(rules.minutes / minutes) - 1)) if minutes else rules.max_pairs


def _budget_text(rules: GateRules, most: int) -> str:
    if rules.minutes is None:
        return ""
    if most < rules.max_pairs:
        return f" (max_pairs = {rules.max_pairs}, limited by gate.minutes = {rules.minutes:g})"
    return f" (within gate.minutes = {rules.minutes:g})"


def _case_forecast(
    case: Case, rules: GateRules, most: int, spread: CaseCalibration | None, seconds: float | None
) -> CaseForecast:
    least = min(rules.min_pairs, most)
    trials = (2 * (1 + least), 2 * (1 + most))
    if spread is None:
        span = (trials[0] * seconds / 60, trials[1] * seconds / 60) if seconds else None
        return CaseForecast(case.name, trials, span, None)
    gated = rules_of(rules, rules.tolerances_for(case.label, case.name)).items()
    known = spread.deviations
    needed = [
        pairs_needed(known[metric], rule.effect, rule.estimator) for metric, rule in gated if metric in known
    ]
    likely = min(max([least, *needed]), most)
    minutes = ((1 + likely) * spread.minutes_per_pair, (1 + most) * spread.minutes_per_pair)
    pace = rules_of(rules, rules.tolerances_for(case.label, case.name)).get("tokens_per_s")
    if pace is None or most < 2:
        return CaseForecast(case.name, trials, minutes, None)
    return CaseForecast(
        case.name,
        trials,
        minutes,
        spread.detectable_loss("tokens_per_s", replace(pace, min_pairs=least, max_pairs=most)),
    )
