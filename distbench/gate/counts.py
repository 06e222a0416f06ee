"""Compare counted numbers, which are equal in every trial, exactly."""

from __future__ import annotations

import math

from distbench.core.text import one_line
from distbench.gate.pairs import RecordPairs, median_of_arm
from distbench.gate.verdicts import GateVerdict, MetricFinding
from distbench.gate.wording import before_after_text
from distbench.suite.gate import Tolerances

COUNTED_METRICS = {"comm_bytes": "comm_bytes", "comm_calls": "comm_calls"}
"""Gated number that does not vary from trial to trial -> its column."""


def counted_findings(pairs: RecordPairs, own: Tolerances) -> list[MetricFinding]:
    """Findings on each gated number that is counted."""
    found = []
    for metric, column in COUNTED_METRICS.items():
        limit = getattr(own, metric)
        before, after = median_of_arm(pairs, column, 0), median_of_arm(pairs, column, 1)
        if limit is None or before is None:
            # not gated, or the baseline doesn't report it either
            continue
        found.append(_counted_finding(metric, column, limit, before, after, pairs))
    return found


def _counted_finding(
    metric: str, column: str, limit: float, before: float, after: float | None, pairs: RecordPairs
) -> MetricFinding:
    if after is None:
        reason = one_line(pairs[0][1].absent.get(column, "not in its records"))
        why = f"measured in the baseline, absent in the candidate: {reason}"
        return MetricFinding(metric, "missing", why, limit, baseline=before if _is_count(before) else None)
    if not _is_count(after):
        return MetricFinding(metric, "invalid", f"{after:g} in the candidate, which is not a count", limit)
    if not _is_count(before):
        return MetricFinding(
            metric, "incomparable", f"{before:g} in the baseline, which is not a count", limit
        )
    unit = str(pairs[0][0].columns.get(column, {}).get("unit", ""))
    ratio = after / before if before else (1.0 if after == before else math.inf)
    word: GateVerdict = (
        "regressed" if ratio > 1 + limit else "improved" if ratio < 1 / (1 + limit) else "pass"
    )
    values = "unchanged" if before == after else before_after_text(before, after, unit)
    return MetricFinding(
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
