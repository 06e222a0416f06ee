"""Compare the columns of kinds of job other than the timed trials, over pairs of trials of both arms.

A kind may have many columns, and a case fails if one of them does: each interval is made so wide that all
of a case hold together (Bonferroni), in place of a second series. A few pairs say little about the spread of
one column, so those of the others contribute (``analysis.statistics.variance_shrinkage``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.statistics.distributions import t_quantile
from distbench.analysis.statistics.variance_shrinkage import moderated_variances
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.gate.pairs import RecordPairs
from distbench.gate.verdicts import CaseVerdict, GateVerdict, MetricFinding
from distbench.gate.wording import percent_change
from distbench.record import Record, Status

_ERROR_RATE = 0.05
"""Chance that an interval of a case misses the truth, whatever the number of its columns."""
_MIN_PAIRS = 3
"""Pairs from which on a t interval holds."""
_MAX_COUNT_ERROR = 1e-9
"""Deviation of logarithms below which numbers differ by rounding alone."""


def compare_columns(
    kind: str, limit: float, baseline: Sequence[Record], candidate: Sequence[Record]
) -> list[CaseVerdict]:
    """Verdict on each case for which the *candidate* has records of this *kind*, in the order of its trials.

    Args:
        kind: Word of the kind of job, which is its section.
        limit: Allowed worsening of every column that has a better direction, as a fraction.
        baseline: Records of this kind of the baseline.
        candidate: Those of the candidate.
    """
    mates = {(record.case.name, record.round): record for record in baseline}
    return [
        CaseVerdict(
            case=of[0].case.name,
            label=of[0].case.label,
            world_size=of[0].case.world_size,
            findings=tuple(
                _findings(kind, limit, of, [mates.get((each.case.name, each.round)) for each in of])
            ),
        )
        for of in group_by(candidate, lambda record: record.case.name).values()
    ]


def _findings(
    kind: str, limit: float, candidate: Sequence[Record], baseline: Sequence[Record | None]
) -> Iterator[MetricFinding]:
    for record in candidate:
        if record.status is not Status.MEASURED:
            why = f"{record.status}: {one_line(record.reason)}"
            yield MetricFinding("trial", "broken", f"{kind} failed here ({why})")
            return
    pairs = [
        (before, after)
        for before, after in zip(baseline, candidate, strict=True)
        if before is not None and before.status is Status.MEASURED
    ]
    if not pairs:
        yield MetricFinding("trial", "incomparable", f"{kind} was not measured in the baseline")
        return
    described = pairs[0][1].columns
    known = [name for name in described if described[name].get("better") and name in pairs[0][0].values]
    logs = {name: _log_cost_ratios(name, pairs) for name in known}
    spreads = _spreads({name: each for name, each in logs.items() if each and len(each) >= _MIN_PAIRS})
    for name in known:
        yield _finding(name, kind, limit, pairs, logs[name], spreads.get(name))


def _log_cost_ratios(name: str, pairs: RecordPairs) -> list[float] | None:
    """Logarithms of the cost ratios of a column; None if a trial has no positive number."""
    sides = [[record.values.get(name, math.nan) for record in side] for side in zip(*pairs, strict=True)]
    if not all(0 < value < math.inf for side in sides for value in side):
        return None
    sign = -1 if pairs[0][1].columns[name]["better"] == "higher" else 1
    return [sign * (math.log(after) - math.log(before)) for before, after in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _Spread:
    """Possible deviation of the mean of a column from the truth."""

    variance: float
    """Of the logarithm of a pair's ratio."""
    quantile: float
    """Of Student's t, for all columns of the case together."""


def _spreads(logs: Mapping[str, Sequence[float]]) -> dict[str, _Spread]:
    """Spread of each column, by its name.

    A column whose pairs all agree, such as bytes, is counted: it neither contributes to the others nor takes
    from them.
    """
    chance = 1 - _ERROR_RATE / 2 / max(1, len(logs))
    own = {name: statistics.variance(each) for name, each in logs.items()}
    found = {name: _Spread(variance, 0.0) for name, variance in own.items()}
    if noisy := [name for name, variance in own.items() if variance > _MAX_COUNT_ERROR**2]:
        freedoms = np.array([len(logs[name]) - 1.0 for name in noisy])
        variances, behind = moderated_variances(np.array([own[name] for name in noisy]), freedoms)
        for name, variance, freedom in zip(noisy, variances.tolist(), behind.tolist(), strict=True):
            found[name] = _Spread(variance, t_quantile(chance, freedom))
    return found


def _finding(
    name: str,
    kind: str,
    limit: float,
    pairs: RecordPairs,
    logs: Sequence[float] | None,
    spread: _Spread | None,
) -> MetricFinding:
    """Finding on a column by the *logs* of its pairs."""
    described = pairs[0][1].columns[name]
    if logs is None:
        why = pairs[0][1].absent.get(name, "not a positive number in every trial")
        return MetricFinding(name, "missing", f"in the baseline, but not here: {one_line(why)}", limit)
    if spread is None:
        few = f"{format_count(len(logs), 'pair')} are too few; {_MIN_PAIRS} are needed: raise {kind}.trials"
        return MetricFinding(name, "inconclusive", few, limit, pairs=len(logs), needed=_MIN_PAIRS)
    mean, half = statistics.fmean(logs), spread.quantile * math.sqrt(spread.variance / len(logs))
    word, text = _judge(mean, half, math.log1p(limit))
    more = f"; too wide: raise {kind}.trials or the tolerance" if word == "inconclusive" else ""
    interval = f"{_format_log_change(mean - half)} to {_format_log_change(mean + half)}"
    baseline, candidate = (
        statistics.median(record.values[name] for record in side) for side in zip(*pairs, strict=True)
    )
    return MetricFinding(
        metric=name,
        word=word,
        said=f"{text} ({interval} in cost; {format_count(len(logs), 'pair')}; limit {limit:.0%}){more}",
        limit=limit,
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        pairs=len(logs),
        baseline=baseline,
        candidate=candidate,
        unit=str(described.get("unit", "")),
        deviation=math.sqrt(spread.variance),
    )


def _judge(mean: float, half: float, limit: float) -> tuple[GateVerdict, str]:
    if mean - half > 0 and mean >= limit:
        return "regressed", f"{percent_change(math.exp(mean))} worse"
    if mean + half < 0 and mean <= -limit:
        return "improved", f"{percent_change(math.exp(mean))} better"
    return ("pass" if half <= limit else "inconclusive"), "no change above the limit"


def _format_log_change(log: float) -> str:
    return f"{math.expm1(log):+.1%}"
