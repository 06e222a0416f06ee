"""Describe gradients that leave the range of fp16: skipped steps, and tensors whose gradients are 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.core.gradient_overflow import overflow_remedy, overflow_text
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited


def gradient_range_sentences(measured: Sequence[CaseSummary], names: Mapping[str, str]) -> list[str]:
    """Sentences on the cases of *measured* whose steps were skipped, or whose gradients vanished.

    Args:
        names: Case ID -> name.
    """
    found = group_pairs((text, names[row.case.id]) for row in measured for text in _findings(row))
    return [f"{join_limited(cases)}: {text}" for text, cases in found.items()]


def _findings(row: CaseSummary) -> Iterator[str]:
    record, precision = row.representative_trial, row.case.precision
    ranges = record.tables.get("gradient_range", []) if record else []
    if (skipped := row.values.get("skipped_share")) and skipped.value:
        yield (
            f"{skipped.value:.0%} of the timed steps were skipped, because "
            f"{overflow_text(precision, ranges)}. A skipped step takes its time and trains nothing: "
            f"{overflow_remedy(precision)}."
        )
    zero = [each["tensor"] for each in ranges if each["zero_share"] == 1]
    if zero and len(zero) < len(ranges):
        yield (
            f"every element of the gradient is 0 in fp16 for {join_limited(zero, limit=3)}: it underflows, "
            "or the parameter has no part in the loss."
        )
