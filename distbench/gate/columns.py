"""The columns of kinds of job other than the timed trials, compared over pairs of trials of both arms.

A kind may have many columns, and a case fails if one of them does: each interval is made so wide that all
of a case hold together (Bonferroni), in place of a second series.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from distbench.analysis.quantiles import t_quantile
from distbench.analysis.text import one_line
from distbench.gate.pairs import Pairs
from distbench.gate.verdicts import CaseVerdict, Finding, Word
from distbench.gate.wording import percent
from distbench.grouping import grouped
from distbench.record import Record, Status
from distbench.units import count_text

_CHANCE = 0.05
"""Of an interval of a case that leaves out the truth, whatever the number of its columns."""
_LEAST = 3
"""Pairs from which on a t interval holds."""


def compared(
    kind: str, limit: float, baseline: Sequence[Record], candidate: Sequence[Record]
) -> list[CaseVerdict]:
    """Verdict on each case that the *candidate* has records of this *kind* of, in the order of its trials.

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
        for of in grouped(candidate, lambda record: record.case.name).values()
    ]


def _findings(
    kind: str, limit: float, candidate: Sequence[Record], baseline: Sequence[Record | None]
) -> Iterator[Finding]:
    for record in candidate:
        if record.status is not Status.MEASURED:
            why = f"{record.status}: {one_line(record.reason)}"
            yield Finding("trial", "broken", f"{kind} failed here ({why})")
            return
    pairs = [
        (before, after)
        for before, after in zip(baseline, candidate, strict=True)
        if before is not None and before.status is Status.MEASURED
    ]
    if not pairs:
        yield Finding("trial", "incomparable", f"{kind} was not measured in the baseline")
        return
    described = pairs[0][1].columns
    known = [name for name in described if described[name].get("better") and name in pairs[0][0].values]
    for name in known:
        yield _finding(name, kind, limit, pairs, len(known))


def _finding(name: str, kind: str, limit: float, pairs: Pairs, of: int) -> Finding:
    """Finding on one of *of* columns."""
    described = pairs[0][1].columns[name]
    sides = [[record.values.get(name, math.nan) for record in side] for side in zip(*pairs, strict=True)]
    if not all(0 < value < math.inf for side in sides for value in side):
        why = pairs[0][1].absent.get(name, "not a positive number in every trial")
        return Finding(name, "missing", f"in the baseline, but not here: {one_line(why)}", limit)
    sign = -1 if described["better"] == "higher" else 1
    logs = [sign * (math.log(after) - math.log(before)) for before, after in zip(*sides, strict=True)]
    if len(logs) < _LEAST:
        few = f"{count_text(len(logs), 'pair')} are too few; {_LEAST} are needed: raise {kind}.trials"
        return Finding(name, "inconclusive", few, limit, pairs=len(logs), needed=_LEAST)
    mean, deviation = statistics.fmean(logs), statistics.stdev(logs)
    half = t_quantile(1 - _CHANCE / 2 / of, len(logs) - 1) * deviation / math.sqrt(len(logs))
    word, said = _judged(mean, half, math.log1p(limit))
    more = f"; too wide: raise {kind}.trials or the tolerance" if word == "inconclusive" else ""
    interval = f"{_signed(mean - half)} to {_signed(mean + half)}"
    return Finding(
        metric=name,
        word=word,
        said=f"{said} ({interval} in cost; {count_text(len(logs), 'pair')}; limit {limit:.0%}){more}",
        limit=limit,
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        pairs=len(logs),
        baseline=statistics.median(sides[0]),
        candidate=statistics.median(sides[1]),
        unit=str(described.get("unit", "")),
        deviation=deviation,
    )


def _judged(mean: float, half: float, limit: float) -> tuple[Word, str]:
    if mean - half > 0 and mean >= limit:
        return "regressed", f"{percent(math.exp(mean))} worse"
    if mean + half < 0 and mean <= -limit:
        return "improved", f"{percent(math.exp(mean))} better"
    return ("pass" if half <= limit else "inconclusive"), "no change beyond the limit shown"


def _signed(log: float) -> str:
    return f"{math.expm1(log):+.1%}"
