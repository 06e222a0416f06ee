"""Overview of the traces of a job: where the time of a step goes, and its largest losses, in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from distbench.analysis.traces.breakdown import PieceKind
from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.time_losses import TimeLoss
from distbench.core.text import wrap_text
from distbench.core.units import format_count, format_duration, format_percent, join_words

_MOST_LOSSES = 10
_LEAST_SHARE = 0.001
_PARTS: dict[PieceKind, str] = {
    "compute": "computation",
    "communication": "exposed communication",
    "copy": "exposed copies",
    "idle": "idle",
}


def step_sentence(job: JobTrace) -> str:
    """Sentence on the parts of the mean step of all ranks."""
    seconds = dict.fromkeys(_PARTS, 0.0)
    for rank in job.ranks:
        for step in rank.steps:
            for kind in _PARTS:
                seconds[kind] += step.parts.get(kind, 0.0) / len(rank.steps) / len(job.ranks)
    whole = math.fsum(seconds.values())
    parts = join_words(
        [f"{format_percent(seconds[kind] / whole)} {text}" for kind, text in _PARTS.items() if whole]
    )
    steps = statistics.median_low(len(rank.steps) for rank in job.ranks)
    ranks = format_count(len(job.ranks), "rank")
    devices = sorted({rank.device for rank in job.ranks if rank.device})
    on = f" on {join_words(devices)}" if devices else ""
    marks = join_words(sorted({rank.step_marks for rank in job.ranks}))
    return (
        f"A step takes {format_duration(whole)}: {parts}. Mean over {format_count(steps, 'step')} "
        f"(by {marks}) and {ranks}{on}."
    )


def overview_lines(job: JobTrace, width: int) -> Iterator[str]:
    """Yield the lines of the overview, at most *width* characters wide."""
    yield from wrap_text(step_sentence(job), width)
    losses = largest_losses(job)
    if losses:
        yield ""
        yield from wrap_text("Largest losses; without one, a step would save at most its time:", width)
    for loss in losses:
        lead = f"{format_duration(loss.seconds):>9} {format_percent(loss.share):>5}  "
        indent = " " * len(lead)
        yield from wrap_text(loss_sentence(loss, job), width, first_indent=lead, indent=indent)
        yield from wrap_text(loss.advice, width, first_indent=indent, indent=indent)


def largest_losses(job: JobTrace) -> list[TimeLoss]:
    """Losses that people see, the largest first."""
    return [loss for loss in job.losses if loss.share >= _LEAST_SHARE][:_MOST_LOSSES]


def loss_sentence(loss: TimeLoss, job: JobTrace) -> str:
    """Kind and cause of *loss*, with the rank that loses most by it."""
    before = f", most before {join_words(loss.following)}" if loss.following else ""
    most = f"; {format_duration(loss.rank_seconds)} on rank {loss.rank}" if len(job.ranks) > 1 else ""
    return f"{loss.kind}: {loss.name}{before}{most}"
