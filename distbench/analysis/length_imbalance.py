"""Imbalance between ranks that the lengths of their rows cause."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from distbench.metrics.base import PROFILE_TOKENS
from distbench.record import Record

_LEAST_STEPS = 2
_LEAST_SHARE = 0.5
"""Share of the variance of the work between ranks that tokens must explain."""


@dataclass(frozen=True)
class LengthImbalance:
    """Differences of the work of ranks that follow from the tokens that they compute."""

    explained: float
    """Share of the variance of the work between the ranks of a step that tokens explain."""
    ratio: float
    """Most tokens of a rank over the mean of the ranks, mean over the profiled steps."""


def length_imbalance(record: Record | None) -> LengthImbalance | None:
    """Imbalance of the profiled steps of *record* that lengths cause; None: another cause, or unknown.

    If time is spent on tokens, a rank's work differs from the mean of its step by its surplus of tokens times
    the time of a token, which is the work of all steps over their tokens. Nothing is fitted, so that neither
    a slow rank nor chance in a few steps is taken for it: what is left must vary less than half as much.
    """
    steps = _steps(record) if record else []
    if len(steps) < _LEAST_STEPS:
        return None
    seconds, tokens = (sum(each[i] for step in steps for each in step) for i in (0, 1))
    if not seconds or not tokens:
        return None
    pairs = [pair for step in steps for pair in _from_mean(step)]
    varied = sum(work**2 for work, _ in pairs)
    left = sum((work - surplus * seconds / tokens) ** 2 for work, surplus in pairs)
    explained = 1 - left / varied if varied else 0.0
    if explained < _LEAST_SHARE:
        return None
    counts = [[count for _, count in step] for step in steps]
    return LengthImbalance(explained, statistics.fmean(max(of) / statistics.fmean(of) for of in counts))


def _steps(record: Record) -> list[list[tuple[float, float]]]:
    """Seconds of work and tokens of each rank, by profiled step; empty: unknown, or one rank."""
    work, tokens = (record.samples.get(name, []) for name in ("work_s", PROFILE_TOKENS))
    if len(work) < 2 or len(work) != len(tokens):
        return []
    ranks = [list(zip(*rank, strict=False)) for rank in zip(work, tokens, strict=True)]
    return [
        [(seconds, count) for seconds, count in step if seconds is not None and count is not None]
        for step in zip(*ranks, strict=False)
        if all(None not in pair for pair in step)
    ]


def _from_mean(step: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Work and tokens of each rank less their means over the ranks of *step*."""
    work, tokens = (statistics.fmean(each[i] for each in step) for i in (0, 1))
    return [(seconds - work, count - tokens) for seconds, count in step]
