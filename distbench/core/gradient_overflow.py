"""Describe gradients that overflow fp16 under a loss scale: the tensor that does so first, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distbench.core.case import PrecisionConfig


def overflow_text(precision: PrecisionConfig, ranges: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a clause on an overflow.

    Args:
        ranges: Rows of the table ``gradient_range``, of a step after the overflow; empty: unknown.
    """
    scale = (
        "a dynamic loss scale" if precision.is_scaled_dynamically else f"loss scale {precision.loss_scale:g}"
    )
    return f"gradients overflowed under {scale}{_first_text(ranges)}"


def overflow_remedy(precision: PrecisionConfig) -> str:
    """Return what to try against skipped steps, in the keys of a suite."""
    if precision.is_scaled_dynamically:
        return "lower precision.initial_scale_power, or raise measure.warmup"
    return "lower precision.loss_scale, or set it to dynamic"


def _first_text(ranges: Sequence[Mapping[str, Any]]) -> str:
    if not ranges:
        return ""
    if broken := [each["tensor"] for each in ranges if each["largest"] is None]:
        # parameters are named in the order of the forward pass; the backward pass starts at the last
        return f" (in a later step, those of {len(broken)} of {len(ranges)} tensors, {broken[-1]} first)"
    largest = max(ranges, key=lambda each: each["largest"])
    return f" (the largest is that of {largest['tensor']})"
