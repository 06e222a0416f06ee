"""A stored run as the baseline: advisory, because runs differ by more than the spread of their trials.

On another day the whole machine may be slightly slower. The spread of trials doesn't include that, so more
trials narrow the interval and raise the rate of false alarms. Here the interval also covers how much runs
of the same case have differed on this machine, as far as there are any. A slowdown is reported but never
fails the gate: that needs both arms run side by side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.comparison import compare
from distbench.analysis.paired import CONFIDENCE
from distbench.analysis.quantiles import t_quantile
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import differences, environment
from distbench.analysis.summary import CaseSummary
from distbench.gate.calibration import fingerprint
from distbench.gate.conclusion import demanded
from distbench.gate.judging import counted
from distbench.gate.matching import verdict
from distbench.gate.verdicts import CaseVerdict, Finding, Result
from distbench.gate.wording import change, percent
from distbench.job import MEASURE
from distbench.record import Record
from distbench.record.store import new_run_id
from distbench.suite.gate import GateRules

LEAST_RUNS = 3
"""Runs of a case needed to estimate how much runs differ."""
_WORDS = ("slower", "faster")
_DECIDE = "for a verdict run both side by side: --baseline with a git revision or a Python environment"


@dataclass(frozen=True)
class RunSpread:
    """How much runs of one case on one machine have differed, beyond the spread of their trials."""

    count: int
    deviation: float | None
    """Standard deviation of the logarithm of the step time; None: too few runs."""


def log_times(run: AnalysedRun) -> dict[str, list[float]]:
    """Natural logarithms of the trials' mean step times, by case id."""
    times: dict[str, list[float]] = {}
    for record in run.measured:
        seconds = record.values.get("step_s", 0.0)
        if 0 < seconds < math.inf:
            times.setdefault(record.case_id, []).append(math.log(seconds))
    return times


def run_spread(runs: Sequence[Sequence[float]]) -> RunSpread:
    """Spread of *runs*, each given as the log step times of its trials.

    The variance between runs is the variance of their means minus the part that the spread of their trials
    explains (analysis of variance with one random effect).
    """
    if len(runs) < LEAST_RUNS:
        return RunSpread(len(runs), None)
    within = [statistics.variance(trials) / len(trials) for trials in runs if len(trials) > 1]
    explained = statistics.fmean(within) if within else 0.0
    between = statistics.variance([statistics.fmean(trials) for trials in runs]) - explained
    return RunSpread(len(runs), math.sqrt(max(0.0, between)))


def advise(before: Sequence[float], after: Sequence[float], spread: RunSpread, limit: float) -> Finding:
    """Finding on the throughput of two runs: pass or inconclusive.

    Args:
        before: Log step times of the stored run's trials.
        after: Log step times of the candidate's trials.
        spread: How much runs of this case differ.
        limit: Allowed slowdown, as a fraction.
    """
    name = "tokens_per_s"
    if min(len(before), len(after)) < 2:
        why = "a single trial has no spread; raise measure.trials"
        return Finding(name, "inconclusive", why, limit)
    shift = statistics.fmean(after) - statistics.fmean(before)
    ratio, measured = math.exp(shift), change(math.exp(shift), _WORDS)
    if spread.deviation is None:
        why = (
            f"{measured} than the stored run; {LEAST_RUNS} runs of this case on this machine are needed to "
            f"know how much runs differ, {spread.count} found; {_DECIDE}"
        )
        return Finding(name, "inconclusive", why, limit, ratio)
    trials = sum(statistics.variance(times) / len(times) for times in (before, after))
    quantile = t_quantile((1 + CONFIDENCE) / 2, spread.count - 1)
    half = quantile * math.sqrt(trials + 2 * spread.deviation**2)
    low, high = math.exp(shift - half), math.exp(shift + half)
    resolves = f"advisory: over {spread.count} runs this machine resolves {percent(math.exp(half))} at best"
    span = f"{measured} (from {change(low, _WORDS)} to {change(high, _WORDS)}; {resolves})"
    is_sure = half <= math.log1p(limit) and ratio < 1 + limit
    why = span if is_sure else f"{span}; {_DECIDE}"
    return Finding(name, "pass" if is_sure else "inconclusive", why, limit, ratio, low, high)


def judged(
    baseline: AnalysedRun, candidate: AnalysedRun, others: Sequence[AnalysedRun], rules: GateRules, title: str
) -> Result:
    """Result of a gate of *candidate* against the stored run *baseline*.

    Args:
        others: Further runs, for how much runs differ; those of other machines are ignored.
        title: Title of the baseline.
    """
    here = fingerprint(candidate.info.machine)
    past = [log_times(run) for run in (*others, baseline) if fingerprint(run.info.machine) == here]
    same_machine = fingerprint(baseline.info.machine) == here
    before, after = log_times(baseline), log_times(candidate)
    cases = []
    for pair in compare(baseline.cases, candidate.cases):
        row = pair.after
        if row is None:
            assert pair.before is not None
            cases.append(verdict(pair.before.case, "missing", "the candidate has no such case"))
        elif pair.incomparable:
            cases.append(verdict(row.case, "incomparable", pair.incomparable))
        else:
            limit = rules.of(row.case.label, row.case.name).tokens_per_s
            pace = _incomparable(baseline, candidate, same_machine)
            if pace is None and limit is not None:
                spread = run_spread([run[row.case.id] for run in past if row.case.id in run])
                pace = advise(before.get(row.case.id, []), after.get(row.case.id, []), spread, limit)
            cases.append(_verdict(row, pace, baseline, candidate, rules, pair.notes))
    return Result(
        gate_id=new_run_id(),
        suite=candidate.info.suite_name,
        baseline=title,
        candidate="the suite as it stands",
        cases=tuple(cases),
        environment=differences(
            *(environment(run.measured, run.info.machine) for run in (baseline, candidate))
        ),
        notes=(f"Scaling efficiency is not judged against a stored run; {_DECIDE}.",),
    )


def _incomparable(baseline: AnalysedRun, candidate: AnalysedRun, same_machine: bool) -> Finding | None:
    """Finding that the throughput of two runs can't be compared, if so."""
    if not same_machine:
        why = f"the stored run was made on another machine; {_DECIDE}"
        return Finding("tokens_per_s", "incomparable", why)
    before, after = (run.info.suite.get(MEASURE, {}) for run in (baseline, candidate))
    differing = [key for key in ("warmup", "steps") if before.get(key) != after.get(key)]
    if differing:
        why = ", ".join(f"measure.{key} was {before.get(key)}, is {after.get(key)}" for key in differing)
        return Finding("tokens_per_s", "incomparable", why)
    return None


def _verdict(
    row: CaseSummary,
    pace: Finding | None,
    baseline: AnalysedRun,
    candidate: AnalysedRun,
    rules: GateRules,
    notes: tuple[str, ...],
) -> CaseVerdict:
    own = rules.of(row.case.label, row.case.name)
    pairs = list(zip(*(_measured(run, row) for run in (baseline, candidate)), strict=False))
    findings = (*([pace] if pace else []), *counted(pairs, own), *demanded(row, rules))
    return CaseVerdict(row.case.name, row.case.label, row.case.world_size, findings, notes=notes)


def _measured(run: AnalysedRun, row: CaseSummary) -> list[Record]:
    return [record for record in run.measured if record.case_id == row.case.id]
