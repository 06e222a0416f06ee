"""Findings on numbers that are counted: the same in every trial, so compared exactly."""

from __future__ import annotations

import math

from distbench.core.text import one_line
from distbench.gate.pairs import Pairs, median
from distbench.gate.verdicts import Finding, Word
from distbench.gate.wording import before_and_after
from distbench.suite.gate import Tolerances

COUNTED = {"comm_bytes": "comm_bytes", "comm_calls": "comm_calls"}
"""Gated number that does not vary from trial to trial -> its column."""


def counted(pairs: Pairs, own: Tolerances) -> list[Finding]:
    """Findings on each gated number that is counted."""
    found = []
    for metric, column in COUNTED.items():
        limit = getattr(own, metric)
        before, after = median(pairs, column, 0), median(pairs, column, 1)
        if limit is None or before is None:
            # not gated, or the baseline doesn't report it either
            continue
        found.append(_counted(metric, column, limit, before, after, pairs))
    return found


def _counted(
    metric: str, column: str, limit: float, before: float, after: float | None, pairs: Pairs
) -> Finding:
    if after is None:
        reason = one_line(pairs[0][1].absent.get(column, "not in its records"))
        why = f"measured in the baseline, absent in the candidate: {reason}"
        return Finding(metric, "missing", why, limit, baseline=before if _is_count(before) else None)
    if not _is_count(after):
        return Finding(metric, "invalid", f"{after:g} in the candidate, which is not a count", limit)
    if not _is_count(before):
        return Finding(metric, "incomparable", f"{before:g} in the baseline, which is not a count", limit)
    unit = str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    word: Word = "regressed" if ratio > 1 + limit else "improved" if ratio < 1 / (1 + limit) else "pass"
    values = "unchanged" if before == after else before_and_after(before, after, unit)
    return Finding(
        metric,
        word,
        f"{values} (limit {limit * 100:g}%)" if word == "regressed" else values,
        limit,
        ratio if math.isfinite(ratio) else None,
        pairs=len(pairs),
        baseline=before,
        candidate=after,
        unit=unit,
    )


def _is_count(value: float) -> bool:
    return 0 <= value < math.inf
