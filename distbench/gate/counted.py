"""What does not differ from trial to trial: it is counted, and gated exactly."""

from __future__ import annotations

import math

from distbench.analysis.text import one_line
from distbench.gate.pairs import Pairs, median
from distbench.gate.verdicts import Finding, Word
from distbench.spec.gate import Tolerances
from distbench.units import number_text, value_text

COUNTED = {"peak_memory": "memory_peak", "comm_bytes": "comm_bytes", "comm_calls": "comm_calls"}
"""Gated number that does not differ from trial to trial -> its column."""


def counted(pairs: Pairs, own: Tolerances) -> list[Finding]:
    """Return what the pairs of a case say of each number that is counted and gated."""
    found = []
    for metric, column in COUNTED.items():
        limit = getattr(own, metric)
        before, after = median(pairs, column, 0), median(pairs, column, 1)
        if limit is None or before is None:
            # what the baseline does not tell either is gated by nothing that could be missing
            continue
        found.append(_one_counted(metric, column, limit, before, after, pairs))
    return found


def _one_counted(
    metric: str, column: str, limit: float, before: float, after: float | None, pairs: Pairs
) -> Finding:
    if after is None:
        why = pairs[0][1].absent.get(column, "no record tells it")
        said = f"measured in the baseline, absent in the candidate: {one_line(why)}"
        return Finding(metric, "missing", said, limit, baseline=before if _is_count(before) else None)
    if not _is_count(after):
        return Finding(metric, "invalid", f"{after:g} in the candidate, which is no count", limit)
    if not _is_count(before):
        return Finding(metric, "incomparable", f"{before:g} in the baseline, which is no count", limit)
    unit = str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    word: Word = "regressed" if ratio > 1 + limit else "improved" if ratio < 1 / (1 + limit) else "pass"
    told = "unchanged" if before == after else _both(before, after, unit)
    return Finding(
        metric,
        word,
        f"{told} (limit {limit * 100:g}%)" if word == "regressed" else told,
        limit,
        ratio if math.isfinite(ratio) else None,
        pairs=len(pairs),
        baseline=before,
        candidate=after,
        unit=unit,
    )


def _is_count(value: float) -> bool:
    return 0 <= value < math.inf


def _both(before: float, after: float, unit: str) -> str:
    """Return both values, with as many digits as it takes to see that they differ."""
    texts = [value_text(value, unit) if unit else number_text(value) for value in (after, before)]
    if texts[0] == texts[1]:
        texts = [f"{value:,.15g} {unit}".rstrip() for value in (after, before)]
    return one_line(f"{texts[0]}, was {texts[1]}")
