"""A stored run as the baseline: advisory, because runs differ by more than the spread of their trials.

On another day the whole machine may be slightly slower. The spread of trials doesn't include that, so more
trials narrow the interval and raise the rate of false alarms. Here the interval also covers the differences
between runs of the same case on this machine, if there are any. A slowdown is reported but never
fails the gate: that needs both arms run side by side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.analysis.change_attribution import attribute_change
from distbench.analysis.comparison import STEP, compare_cases
from distbench.analysis.history import HistoryRun, run_variances
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import fact_differences, merge_environments
from distbench.analysis.statistics.distributions import t_quantile
from distbench.analysis.statistics.intervals import CONFIDENCE, ConfidenceInterval, RunVariance
from distbench.analysis.verdicts import perturbed_losses
from distbench.core.grouping import group_by, group_pairs
from distbench.core.job import MEASURE
from distbench.gate import losses
from distbench.gate.calibration import machine_fingerprint
from distbench.gate.case_matching import unmeasured_verdict
from distbench.gate.case_verdict import required_findings
from distbench.gate.metric_rules import metric_findings
from distbench.gate.pairs import CasePairs, RecordPairs
from distbench.gate.verdicts import CaseVerdict, GateResult, GateVerdict, MetricFinding, is_flagged
from distbench.gate.wording import COST_WORDS, describe_change, percent_change
from distbench.record.run_folder import new_run_id
from distbench.suite.gate import GateRules, Tolerances

if TYPE_CHECKING:
    import numpy as np

_ADVICE = (
    "for a verdict, measure both versions side by side (--baseline with a git revision or a Python "
    "environment)"
)


def log_step_times(run: RunAnalysis) -> dict[str, list[float]]:
    """Natural logarithms of the trials' mean step times, by case id."""
    times = ((record.case_id, record.values.get(STEP, 0.0)) for record in run.timed_records)
    return group_pairs((case_id, math.log(seconds)) for case_id, seconds in times if 0 < seconds < math.inf)


def judge_throughput(
    before: Sequence[float], after: Sequence[float], known: RunVariance | None, why_not: str, limit: float
) -> MetricFinding:
    """Finding on the throughput of two runs: pass or inconclusive.

    *before* and *after* are log step times of the stored run's and of the candidate's trials, *known* is how
    much stored runs of the case on this machine differ, *why_not* the reason if that is unknown; *limit* is
    the allowed slowdown, as a fraction.
    """
    name = "tokens_per_s"
    if min(len(before), len(after)) < 2:
        why = "a single trial has no spread; raise measure.trials"
        return MetricFinding(name, "inconclusive", why, limit)
    shift = statistics.fmean(after) - statistics.fmean(before)
    words = COST_WORDS["tokens_per_s"]
    ratio, measured = math.exp(shift), describe_change(math.exp(shift), words)
    if known is None:
        why = f"{measured} than the stored run; the run-to-run variance is unknown: {why_not}; {_ADVICE}"
        return MetricFinding(name, "inconclusive", why, limit, ratio)
    trials = sum(statistics.variance(times) / len(times) for times in (before, after))
    # the variance between runs includes the noise of their trials, unless those of today are noisier
    half = t_quantile((1 + CONFIDENCE) / 2, known.degrees_of_freedom) * math.sqrt(
        max(trials, 2 * known.deviation**2)
    )
    low, high = math.exp(shift - half), math.exp(shift + half)
    resolves = (
        f"advisory: over {known.runs} runs this machine detects changes of "
        f"{percent_change(math.exp(half))} at best"
    )
    span = f"{measured} (from {describe_change(low, words)} to {describe_change(high, words)}; {resolves})"
    is_sure = half <= math.log1p(limit) and ratio < 1 + limit
    why = span if is_sure else f"{span}; {_ADVICE}"
    return MetricFinding(name, "pass" if is_sure else "inconclusive", why, limit, ratio, low, high)


def judge_stored(
    baseline: RunAnalysis, candidate: RunAnalysis, stored: Sequence[HistoryRun], rules: GateRules, title: str
) -> GateResult:
    """Result of a gate of *candidate* against the stored run *baseline*.

    Args:
        stored: Runs, the baseline among them, for the variance between runs; other machines are ignored.
        title: Title of the baseline.
    """
    here = machine_fingerprint(candidate.info.machine)
    alike = [each for each in stored if machine_fingerprint(each.machine) == here]
    earlier = run_variances(alike, {row.case.id for row in candidate.cases})
    before, after = log_step_times(baseline), log_step_times(candidate)
    same_machine = machine_fingerprint(baseline.info.machine) == here
    incomparable = _incomparable(baseline, candidate, same_machine)
    records = [group_by(run.timed_records, lambda record: record.case_id) for run in (baseline, candidate)]
    perturbed = perturbed_losses(baseline.records)
    environment = fact_differences(
        *(merge_environments(run.timed_records, run.info.machine) for run in (baseline, candidate))
    )
    cases = []
    for pair in compare_cases(baseline.cases, candidate.cases):
        row = pair.after
        if row is None:
            assert pair.before is not None
            cases.append(unmeasured_verdict(pair.before.case, "missing", "the candidate has no such case"))
            continue
        if pair.incomparable:
            cases.append(unmeasured_verdict(row.case, "incomparable", pair.incomparable))
            continue
        case, own = row.case, rules.tolerances_for(row.case.label, row.case.name)
        pace = []
        if incomparable:
            pace = [MetricFinding("tokens_per_s", "incomparable", incomparable)]
        elif own.tokens_per_s is not None and pair.disturbed:
            pace = [MetricFinding("tokens_per_s", "inconclusive", pair.disturbed, own.tokens_per_s)]
        elif own.tokens_per_s is not None:
            known = earlier.by_case_and_column.get((case.id, STEP))
            times = before.get(case.id, []), after.get(case.id, [])
            pace = [judge_throughput(*times, known, earlier.absent, own.tokens_per_s)]
        pairs = list(zip(*(side.get(case.id, []) for side in records), strict=False))
        found = (
            *pace,
            *_pair_findings(pairs, rules, own, perturbed.get(case.id, ())),
            *required_findings(row, rules),
        )
        step = _step_ratio(pace)
        split = (
            attribute_change(case, step, baseline.records, candidate.records, environment) if step else None
        )
        cases.append(
            CaseVerdict(case.name, case.label, case.world_size, found, notes=pair.notes, split=split)
        )
    return GateResult(
        gate_id=new_run_id(),
        suite=candidate.info.suite_name,
        baseline=title,
        candidate="the suite without changes",
        cases=tuple(cases),
        environment=environment,
        notes=(f"Scaling efficiency is not judged against a stored run; {_ADVICE}.",),
    )


def _step_ratio(pace: Sequence[MetricFinding]) -> ConfidenceInterval | None:
    """Ratio of two steps by the finding on them, with its interval if it has one; None: it has no ratio."""
    for finding in pace:
        if finding.ratio is not None:
            half = math.log(finding.high / finding.ratio) if finding.high else None
            return ConfidenceInterval(finding.ratio, half)
    return None


def _pair_findings(
    pairs: RecordPairs, rules: GateRules, own: Tolerances, perturbed: Sequence[np.ndarray]
) -> list[MetricFinding]:
    """Judge memory, counts and losses, which do not vary between runs.

    *perturbed* are losses of the stored run's trainings from perturbed weights, where it made any.
    """
    found = metric_findings(CasePairs(pairs), rules, replace(own, tokens_per_s=None, efficiency=None))
    return [*map(_downgrade_single_series, found), *losses.loss_findings(pairs, rules.loss, perturbed)]


def _downgrade_single_series(finding: MetricFinding) -> MetricFinding:
    """Downgrade a finding on a varying number, which a single series cannot confirm."""
    if not is_flagged(finding) or not finding.deviation:
        return finding
    word: GateVerdict = "pass" if finding.word == "improved" else "inconclusive"
    return replace(finding, word=word, said=f"{finding.said}; {_ADVICE}", notable=True)


def _incomparable(baseline: RunAnalysis, candidate: RunAnalysis, same_machine: bool) -> str:
    """Reason why the throughput of two runs can't be compared; empty if it can."""
    if not same_machine:
        return f"the stored run was measured on another machine; {_ADVICE}"
    before, after = (run.info.suite.get(MEASURE, {}) for run in (baseline, candidate))
    differing = [key for key in ("warmup", "steps") if before.get(key) != after.get(key)]
    return ", ".join(f"measure.{key} was {before.get(key)}, is {after.get(key)}" for key in differing)
