"""Pipeline passes in profiled steps, and the time that a rank waits between them. Without torch.

The bubble as defined by Narayanan et al. 2021 (arXiv:2104.04473, section 2.2) and Qi et al. 2024
(arXiv:2401.10241): time of a step in which a rank has nothing to compute, because another rank has not yet
computed its input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.traces.intervals import (
    TimeInterval,
    TimeIntervals,
    difference,
    intersection,
    length,
    union,
)
from distbench.traces.trace import Trace, clip_to_step, launched_in

_PASS = re.compile(r"(\d+)([FBIW])(\d+)")
_DIGITS = 7
"""Decimal places of seconds: a profiler's clock is no finer than a tenth of a microsecond."""
NO_PASSES = "not a pipeline: the strategy marks no passes of stages"
_IDLE_DOC = (
    "Mean over ranks, under the profiler. Idle: no pass of a stage runs, nothing else is computed, and "
    "no batch is prepared."
)

COLUMNS = (
    *columns_of("s", "lower", "mean", per_step=True)(
        bubble_s="Time of a profiled step in which a rank of a pipeline is idle and waits for another, "
        f"without the time of the messages themselves. {_IDLE_DOC}",
        pipeline_transfer_s="Time of a profiled step in which a rank of a pipeline is idle while a "
        f"message is in transit: exposed communication between stages. {_IDLE_DOC}",
    ),
    *columns_of("", "lower", "mean", per_step=True)(
        bubble="bubble_s over profile_step_s, as a fraction (Narayanan et al. 2021, section 2.2; there over "
        "the time without waiting)."
    ),
    *columns_of("", None, "first")(
        bubble_theory="Theoretical bubble if all stages take equally long and messages take no time: by "
        "formula (Narayanan et al. 2021) or, for schedules that split the backward pass, from their "
        "order of passes, with halves as long as the forward pass (Qi et al. 2024)."
    ),
)
TABLE = TableSpec(
    "pipeline",
    "Passes of one profiled step of a pipeline, the step of the table timeline, of all ranks. Times "
    "are relative to the start of the step on the first rank of the same node, by the clock of that "
    "node.",
    (
        TableColumn("step", "bigint", "Which profiled step, from 0 on."),
        TableColumn("stage", "bigint", "Stage of the pipeline, from 0 on."),
        TableColumn(
            "pass",
            "varchar",
            "F: forward, B: backward, I and W: its halves, for the input and for the weights. B, I and W are "
            "torch's names.",
        ),
        TableColumn("micro_batch", "bigint", "Micro-batch of the step, from 0 on."),
        TableColumn("begin_s", "double", "When it began.", "s"),
        TableColumn("end_s", "double", "End of the pass; on a GPU, the end of its last kernel.", "s"),
    ),
)


@dataclass(frozen=True)
class ProfiledPass:
    """Pass of a stage over a micro-batch."""

    stage: int
    kind: str
    micro_batch: int
    interval: TimeInterval


def stage_of(span: str) -> int | None:
    """Stage of a pass with the name *span*; None: it is no pass."""
    match = _PASS.fullmatch(span)
    return int(match[1]) if match else None


def stage_passes(trace: Trace, step: TimeInterval) -> list[ProfiledPass]:
    """Passes in *step*, by begin; empty: no pipeline, or the trace shows none of its passes."""
    marked = [
        (match, turn, interval)
        for name, intervals in trace.marks.items()
        if (match := _PASS.fullmatch(name))
        for turn, interval in enumerate(each for each in intervals if step[0] <= each[0] < step[1])
    ]
    # several schedules may run in a step, each with micro-batches from 0
    each_turn = 1 + max((int(match[3]) for match, *_ in marked), default=0)
    found = [
        ProfiledPass(int(match[1]), match[2], turn * each_turn + int(match[3]), ran)
        for match, turn, interval in marked
        if (ran := _device_interval(trace, interval))
    ]
    return sorted(found, key=lambda each: each.interval)


def _device_interval(trace: Trace, marked: TimeInterval) -> TimeInterval | None:
    """Interval in which a pass ran; on a device from its first kernel to its last."""
    if not trace.is_on_device:
        return marked
    kernels = launched_in(trace.kernels, [marked])
    return (kernels[0][0], kernels[-1][1]) if kernels else None


def idle_seconds(
    trace: Trace,
    step: TimeInterval,
    ran: Sequence[ProfiledPass],
    pending: TimeIntervals,
    moving: TimeIntervals,
) -> tuple[float, float]:
    """Seconds of *step* in which the rank was idle: waiting for another rank, and with a message in flight.

    Args:
        trace: Trace of the rank.
        step: Begin and end of the step.
        ran: Passes in the step.
        pending: Intervals in which a collective of the rank was issued and not done.
        moving: Intervals in which one of them moved bytes, without waiting for a rank.
    """
    own = () if trace.is_on_device else (each.interval for each in ran)
    copies = (each.interval for each in trace.copies)
    busy = union([*own, *trace.compute_intervals, *copies, *trace.marks.get("data", [])])
    idle = intersection(difference([step], busy), union(pending))
    moved = union(moving)
    return length(difference(idle, moved)), length(intersection(idle, moved))


def bubble_values(
    trace: Trace, step: TimeInterval, pending: TimeIntervals, moving: TimeIntervals | None
) -> dict[str, float | None]:
    """Columns of one step of a pipeline; empty: no pipeline. *moving* None: times of messages unknown."""
    if not (ran := stage_passes(trace, step)):
        return {}
    if moving is None:
        return dict.fromkeys(("bubble_s", "pipeline_transfer_s", "bubble"))
    waited, moved = idle_seconds(
        trace, step, ran, clip_to_step(union(pending), step), clip_to_step(union(moving), step)
    )
    return {"bubble_s": waited, "pipeline_transfer_s": moved, "bubble": waited / (step[1] - step[0])}


def pipeline_rows(trace: Trace, step: TimeInterval, number: int, offset: float) -> Iterator[dict[str, Any]]:
    """Rows of this rank in the table ``pipeline``: step *number*, which begins at *offset* seconds."""
    for each in stage_passes(trace, step):
        begin, end = (round(time - step[0] + offset, _DIGITS) for time in each.interval)
        about = {"stage": each.stage, "pass": each.kind, "micro_batch": each.micro_batch}
        yield {"step": number, **about, "begin_s": begin, "end_s": end}
