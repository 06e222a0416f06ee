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
from dataclasses import replace

from distbench.analysis.comparison import compare
from distbench.analysis.paired import CONFIDENCE
from distbench.analysis.quantiles import t_quantile
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import differences, environment
from distbench.gate import losses
from distbench.gate.calibration import fingerprint
from distbench.gate.conclusion import demanded
from distbench.gate.judging import Measured, findings
from distbench.gate.matching import verdict
from distbench.gate.pairs import Pairs
from distbench.gate.verdicts import CaseVerdict, Finding, Result, Word, is_flagged
from distbench.gate.wording import change, percent
from distbench.grouping import gathered, grouped
from distbench.job import MEASURE
from distbench.record.store import new_run_id
from distbench.suite.gate import GateRules, Tolerances

LEAST_RUNS = 3
"""Runs of a case needed to estimate how much runs differ."""
_WORDS = ("slower", "faster")
_DECIDE = "for a verdict run both side by side: --baseline with a git revision or a Python environment"


def log_times(run: AnalysedRun) -> dict[str, list[float]]:
    """Natural logarithms of the trials' mean step times, by case id."""
    times = ((record.case_id, record.values.get("step_s", 0.0)) for record in run.measured)
    return gathered((case_id, math.log(seconds)) for case_id, seconds in times if 0 < seconds < math.inf)


def run_spread(runs: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation of the log step time between *runs*, each given as those of its trials.

    Their variance is that of their means minus the part that the spread of their trials explains (analysis
    of variance with one random effect). None: too few runs.
    """
    if len(runs) < LEAST_RUNS:
        return None
    within = [statistics.variance(trials) / len(trials) for trials in runs if len(trials) > 1]
    explained = statistics.fmean(within) if within else 0.0
    between = statistics.variance([statistics.fmean(trials) for trials in runs]) - explained
    return math.sqrt(max(0.0, between))


def advise(
    before: Sequence[float], after: Sequence[float], runs: Sequence[Sequence[float]], limit: float
) -> Finding:
    """Finding on the throughput of two runs: pass or inconclusive.

    *before* and *after* are log step times of the stored run's and of the candidate's trials, *runs* those of
    every stored run of the case on this machine; *limit* is the allowed slowdown, as a fraction.
    """
    name = "tokens_per_s"
    if min(len(before), len(after)) < 2:
        why = "a single trial has no spread; raise measure.trials"
        return Finding(name, "inconclusive", why, limit)
    shift = statistics.fmean(after) - statistics.fmean(before)
    ratio, measured = math.exp(shift), change(math.exp(shift), _WORDS)
    deviation = run_spread(runs)
    if deviation is None:
        why = (
            f"{measured} than the stored run; {LEAST_RUNS} runs of this case on this machine are needed to "
            f"know how much runs differ, {len(runs)} found; {_DECIDE}"
        )
        return Finding(name, "inconclusive", why, limit, ratio)
    trials = sum(statistics.variance(times) / len(times) for times in (before, after))
    quantile = t_quantile((1 + CONFIDENCE) / 2, len(runs) - 1)
    half = quantile * math.sqrt(trials + 2 * deviation**2)
    low, high = math.exp(shift - half), math.exp(shift + half)
    resolves = f"advisory: over {len(runs)} runs this machine resolves {percent(math.exp(half))} at best"
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
    incomparable = _incomparable(baseline, candidate, same_machine)
    records = [grouped(run.measured, lambda record: record.case_id) for run in (baseline, candidate)]
    cases = []
    for pair in compare(baseline.cases, candidate.cases):
        row = pair.after
        if row is None:
            assert pair.before is not None
            cases.append(verdict(pair.before.case, "missing", "the candidate has no such case"))
            continue
        if pair.incomparable:
            cases.append(verdict(row.case, "incomparable", pair.incomparable))
            continue
        case, own = row.case, rules.of(row.case.label, row.case.name)
        pace = []
        if incomparable:
            pace = [Finding("tokens_per_s", "incomparable", incomparable)]
        elif own.tokens_per_s is not None:
            runs = [run[case.id] for run in past if case.id in run]
            pace = [advise(before.get(case.id, []), after.get(case.id, []), runs, own.tokens_per_s)]
        pairs = list(zip(*(side.get(case.id, []) for side in records), strict=False))
        found = (*pace, *_of_pairs(pairs, rules, own), *demanded(row, rules))
        cases.append(CaseVerdict(case.name, case.label, case.world_size, found, notes=pair.notes))
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


def _of_pairs(pairs: Pairs, rules: GateRules, own: Tolerances) -> list[Finding]:
    """Findings on all that does not depend on the occasion: memory, counts and losses."""
    found = findings(Measured(pairs), rules, replace(own, tokens_per_s=None, efficiency=None))
    return [*map(_told_once, found), *losses.findings(pairs, rules.loss)]


def _told_once(finding: Finding) -> Finding:
    """*finding* of a single series: what varied from trial to trial is not decided by it."""
    if not is_flagged(finding) or not finding.deviation:
        return finding
    word: Word = "pass" if finding.word == "improved" else "inconclusive"
    return replace(finding, word=word, said=f"{finding.said}; {_DECIDE}", notable=True)


def _incomparable(baseline: AnalysedRun, candidate: AnalysedRun, same_machine: bool) -> str:
    """Why the throughput of two runs can't be compared; empty if it can."""
    if not same_machine:
        return f"the stored run was made on another machine; {_DECIDE}"
    before, after = (run.info.suite.get(MEASURE, {}) for run in (baseline, candidate))
    differing = [key for key in ("warmup", "steps") if before.get(key) != after.get(key)]
    return ", ".join(f"measure.{key} was {before.get(key)}, is {after.get(key)}" for key in differing)
