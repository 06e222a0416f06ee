"""A stored run as the baseline: advisory, for two occasions differ by more than their trials tell.

Another day a machine is a little slower as a whole. That is in no spread of trials, so more trials make
the interval narrower and the false alarms more. Here the interval holds what runs of the same case have
differed by on this machine, as far as there are any, and a loss of pace is told and never fails: arms that
are run side by side decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from distbench.analysis.comparison import compare
from distbench.analysis.environment import differences, environment
from distbench.analysis.paired import CONFIDENCE
from distbench.analysis.summary import CaseSummary, summarise
from distbench.gate.calibration import fingerprint
from distbench.gate.counted import counted
from distbench.gate.demands import demanded
from distbench.gate.matching import trial, verdict
from distbench.gate.verdicts import CaseVerdict, Finding, Result
from distbench.gate.wording import change, percent
from distbench.record import Record, of_kind
from distbench.spec.gate import Gate
from distbench.store import RunInfo, new_run_id

LEAST_OCCASIONS = 3
"""Runs of a case that tell anything of what occasions differ by."""
_WORDS = ("slower", "faster")
_DECIDE = "side by side it can be decided: --baseline with a git revision or a Python environment"


@dataclass(frozen=True)
class Stored:
    """A run as it lies on the disk."""

    info: RunInfo
    records: Sequence[Record]

    def times(self) -> dict[str, list[float]]:
        """Return the natural logarithms of the trials' mean step times, by id of the case."""
        found: dict[str, list[float]] = {}
        for record in of_kind(self.records, "measure"):
            seconds = record.values.get("step_s", 0.0)
            if 0 < seconds < math.inf:
                found.setdefault(record.case_id, []).append(math.log(seconds))
        return found


@dataclass(frozen=True)
class Occasions:
    """What runs of one case on one machine have differed by, besides what their trials did."""

    count: int
    deviation: float | None
    """Standard deviation of the logarithm of the step time; None: too few runs."""


def occasions(runs: Sequence[Sequence[float]]) -> Occasions:
    """Return what *runs* differ by, each the log step times of its trials.

    The variance between runs is that of their means less what their trials explain of it (the analysis
    of variance with one random effect).
    """
    if len(runs) < LEAST_OCCASIONS:
        return Occasions(len(runs), None)
    within = [statistics.variance(trials) / len(trials) for trials in runs if len(trials) > 1]
    explained = statistics.fmean(within) if within else 0.0
    between = statistics.variance([statistics.fmean(trials) for trials in runs]) - explained
    return Occasions(len(runs), math.sqrt(max(0.0, between)))


def advise(before: Sequence[float], after: Sequence[float], known: Occasions, limit: float) -> Finding:
    """Return what two occasions say of the pace: pass or inconclusive.

    Args:
        before: Log step times of the trials of the stored run.
        after: The same of the candidate.
        known: What occasions differ by.
        limit: The slow-down that is allowed, as a fraction.
    """
    name = "tokens_per_s"
    if min(len(before), len(after)) < 2:
        return Finding(name, "inconclusive", "one trial tells nothing of its spread; measure.trials", limit)
    shift = statistics.fmean(after) - statistics.fmean(before)
    ratio, told = math.exp(shift), change(math.exp(shift), _WORDS)
    if known.deviation is None:
        said = (
            f"{told} than the stored run; what occasions differ by is not known from {known.count} runs of "
            f"this case on this machine, {LEAST_OCCASIONS} are needed; {_DECIDE}"
        )
        return Finding(name, "inconclusive", said, limit, ratio)
    trials = sum(statistics.variance(each) / len(each) for each in (before, after))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, known.count - 1))
    half = quantile * math.sqrt(trials + 2 * known.deviation**2)
    low, high = math.exp(shift - half), math.exp(shift + half)
    resolves = f"advisory: over {known.count} occasions this machine tells {percent(math.exp(half))} at best"
    span = f"{told} (from {change(low, _WORDS)} to {change(high, _WORDS)}; {resolves})"
    is_sure = half <= math.log1p(limit) and ratio < 1 + limit
    said = span if is_sure else f"{span}; {_DECIDE}"
    return Finding(name, "pass" if is_sure else "inconclusive", said, limit, ratio, low, high)


def judged(baseline: Stored, candidate: Stored, others: Sequence[Stored], rules: Gate, told: str) -> Result:
    """Return what a gate says of *candidate* against the stored run *baseline*.

    Args:
        others: Runs that tell what occasions differ by; those of other machines are left out.
        told: What the baseline is called.
    """
    here = fingerprint(candidate.info.machine)
    past = [each.times() for each in (*others, baseline) if fingerprint(each.info.machine) == here]
    same_machine = fingerprint(baseline.info.machine) == here
    before, after = baseline.times(), candidate.times()
    sides = [summarise(each.info, each.records) for each in (baseline, candidate)]
    cases = []
    for pair in compare(*sides):
        row = pair.after
        if row is None:
            assert pair.before is not None
            cases.append(verdict(pair.before.case, trial("missing", "the candidate has no such case")))
        elif pair.incomparable:
            cases.append(verdict(row.case, trial("incomparable", pair.incomparable)))
        else:
            times = (before.get(row.case.id, []), after.get(row.case.id, []))
            known = occasions([run[row.case.id] for run in past if row.case.id in run])
            pace = _pace(baseline, candidate, same_machine) or _advised(row, times, known, rules)
            cases.append(_verdict(row, pace, baseline, candidate, rules, pair.notes))
    return Result(
        gate_id=new_run_id(),
        suite=candidate.info.suite_name,
        baseline=told,
        candidate="the suite as it stands",
        cases=tuple(cases),
        environment=differences(*(_environment(each) for each in (baseline, candidate))),
        notes=(f"No scaling efficiency is judged against a stored run; {_DECIDE}.",),
    )


def _pace(baseline: Stored, candidate: Stored, same_machine: bool) -> Finding | None:
    """Return why the pace of two runs can't be held together, or None."""
    if not same_machine:
        return Finding("tokens_per_s", "incomparable", f"the stored run is of another machine; {_DECIDE}")
    how = [each.info.suite.get("measure", {}) for each in (baseline, candidate)]
    apart = [key for key in ("warmup", "steps") if how[0].get(key) != how[1].get(key)]
    if apart:
        told = ", ".join(f"measure.{key} was {how[0].get(key)}, is {how[1].get(key)}" for key in apart)
        return Finding("tokens_per_s", "incomparable", told)
    return None


def _advised(
    row: CaseSummary, times: tuple[Sequence[float], Sequence[float]], known: Occasions, rules: Gate
) -> Finding | None:
    limit = rules.of(row.case.label, row.case.name).tokens_per_s
    return None if limit is None else advise(*times, known, limit)


def _verdict(
    row: CaseSummary,
    pace: Finding | None,
    baseline: Stored,
    candidate: Stored,
    rules: Gate,
    notes: tuple[str, ...],
) -> CaseVerdict:
    own = rules.of(row.case.label, row.case.name)
    pairs = list(zip(*(_measured(each, row) for each in (baseline, candidate)), strict=False))
    found = [*([pace] if pace else []), *counted(pairs, own), *demanded(row, rules)]
    return CaseVerdict(row.case.name, row.case.label, row.case.world_size, tuple(found), notes=notes)


def _measured(run: Stored, row: CaseSummary) -> list[Record]:
    return [record for record in of_kind(run.records, "measure") if record.case_id == row.case.id]


def _environment(run: Stored) -> dict[str, tuple[str, ...]]:
    return environment(of_kind(run.records, "measure"), run.info.machine)
