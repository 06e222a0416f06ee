"""The training loss of a case over steps, tokens and seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from distbench.analysis.summary import THROUGHPUT, CaseSummary


@dataclass(frozen=True)
class Progress:
    """One trial's loss, with what each step had consumed when it ended."""

    losses: list[float | None]
    tokens: list[float]
    """After each step, all ranks together; empty if not known."""
    seconds: list[float]
    """After each step, warm-up included; empty if not known. A step takes what its slowest rank takes."""


def progress(row: CaseSummary) -> Progress:
    """Return the losses of *row*'s first trial that counts, over tokens and seconds where these are known."""
    count = len(row.losses)
    a_step = _tokens(row)
    tokens = [] if a_step is None else [a_step * step for step in range(1, count + 1)]
    seconds = list(accumulate(_seconds(row)))
    return Progress(row.losses, tokens, seconds if len(seconds) == count else [])


def _tokens(row: CaseSummary) -> float | None:
    tokens, samples = row.values.get(THROUGHPUT), row.values.get("samples_per_s")
    if tokens is None or samples is None or samples.value <= 0:
        return None
    # both are medians of the same trials, so their ratio is the length of a sample, but for rounding
    return row.case.batch.global_batch_size * round(tokens.value / samples.value, 6)


def _seconds(row: CaseSummary) -> list[float]:
    """Return the seconds of each step, warm-up first; nothing if any is not known."""
    if row.detail is None:
        return []
    found: list[float] = []
    for column in ("warmup_step_s", "step_s"):
        ranks = row.detail.samples.get(column, [])
        for step in zip(*ranks, strict=False):
            known = [s for s in step if s is not None and math.isfinite(s)]
            if len(known) < len(step):
                return []
            found.append(max(known))
    return found
