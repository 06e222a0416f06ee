"""Break a profiled step down by part, and match its collectives with the trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distbench.metrics.communication.traffic import CollectiveCall
from distbench.metrics.profile import STEP_PART_DOCS
from distbench.traces.intervals import (
    TimeInterval,
    TimeIntervals,
    difference,
    intersection,
    length,
    union,
)
from distbench.traces.trace import ProfilerEvent, Trace, clip_to_step, launched_in


def step_parts(trace: Trace, step: TimeInterval, comm: TimeIntervals) -> dict[str, float]:
    """Seconds of each of ``STEP_PART_DOCS`` in *step*; they add up to its length.

    *comm* has the times of collectives. Only the part of them that no computation hides counts, and it is
    subtracted from the other parts. Forward pass, backward pass and optimizer are the time in which
    operations of that part ran (on a CPU), or kernels and copies that it launched (on a GPU). Making a batch
    counts whole.
    """
    exposed = difference(clip_to_step(comm, step), trace.compute_intervals)
    seconds = {"exposed_comm": length(exposed)}
    taken = exposed
    for name, intervals in _marked_intervals(trace).items():
        own = difference(clip_to_step(intervals, step), taken)
        seconds[name] = length(own)
        taken = union([*taken, *own])
    work = union([*trace.compute_intervals, *(copy.interval for copy in trace.copies)])
    seconds["other"] = length(difference(clip_to_step(work, step), taken))
    seconds["idle"] = (step[1] - step[0]) - sum(seconds.values())
    return {name: seconds.get(name, 0.0) for name in STEP_PART_DOCS}


def _marked_intervals(trace: Trace) -> dict[str, list[TimeInterval]]:
    # the optimizer may run inside the backward pass: earlier names are subtracted from later ones
    marks = {name: union(trace.marks.get(name, [])) for name in ("data", "forward", "optimizer", "backward")}
    if not trace.is_on_device:
        ran = {name: intersection(trace.compute_intervals, mark) for name, mark in marks.items()}
        return {**ran, "data": marks["data"]}
    work = [*trace.kernels, *trace.copies]
    by_part = {name: launched_in(work, marks[name]) for name in ("forward", "optimizer", "backward")}
    # the host prepares a batch while the device may still be busy: only the time that the device waits counts
    return {**by_part, "data": union([*marks["data"], *launched_in(work, marks["data"])])}


# operations that a backend may run for a requested one: gloo has no reduce-scatter of its own
_BACKEND_OPERATIONS = {
    "reduce_scatter": ("reduce_scatter", "all_reduce"),
    "all_to_all": ("all_to_all", "send_recv"),
    "send": ("send", "send_recv"),
    "recv": ("recv", "recvAnySource", "send_recv"),
}
_UNEVEN = "all_to_all"
_MESSAGES = {name for op in ("send", "recv") for name in _BACKEND_OPERATIONS[op]}


@dataclass(frozen=True)
class CollectiveRun:
    """A requested collective, and the event of the backend that ran it."""

    call: CollectiveCall
    event: ProfilerEvent
    posted_at: float
    """Time at which the backend had it; ``event`` of a message begins later, when a rank waits for it."""
    shortest_s: float = math.inf
    """Shortest time that any rank of its group spent in it."""

    @property
    def seconds(self) -> float:
        """Time that this rank spent in it."""
        return self.event.end - self.event.begin

    @property
    def transfer(self) -> float:
        """Part of ``seconds`` in which it moved bytes: no rank was waiting any more."""
        return min(self.seconds, self.shortest_s)

    @property
    def wait(self) -> float:
        """Part of ``seconds`` in which this rank waited for others."""
        # clocks have a resolution of 1 ns: anything below is rounding
        return round(self.seconds - self.transfer, 9)

    @property
    def transfer_start(self) -> float:
        """Start of the transfer."""
        return self.event.end - self.transfer


def match_collectives(
    calls: Sequence[CollectiveCall],
    host_calls: Sequence[ProfilerEvent],
    backend_events: Sequence[ProfilerEvent],
) -> list[CollectiveRun] | None:
    """Match each of *calls*, in order, with its run; None if the trace does not contain exactly these.

    All are in the order of one step. The host issues calls in one order and the backend begins them in
    nearly the same order (gloo has two threads per group), so each call gets the first remaining interval
    that can be its own: not started before the call was issued, of the same operation, and of the same size
    if that is reported. The size of an all-to-all may differ: bytes sent to experts change from step to step.
    """
    if len(calls) != len(host_calls):
        return None
    asked = list(zip(calls, host_calls, strict=True))
    if len(backend_events) < len(asked):
        # NCCL runs no kernel for a group of one rank, while gloo runs something
        asked = [(call, issue) for call, issue in asked if call.group_size > 1]
    if len(asked) != len(backend_events):
        return None
    left, matched = list(backend_events), []
    sizes = {call.dtype: call.bytes // call.elements for call in calls if call.elements}
    for call, issue in asked:
        event = _first_match(call, issue, left)
        if event is None:
            return None
        left.remove(event)
        matched.append(CollectiveRun(_with_actual_size(call, event, sizes), event, event.begin))
    return matched


def clip_to_wait(event: ProfilerEvent, waits: TimeIntervals) -> ProfilerEvent:
    """Clip *event* to begin when the host waited for it, if it is a message.

    gloo shows a message until a process has waited for it.

    Args:
        waits: Intervals in which the host waited for messages; without one, it waited at once.
    """
    if event.name not in _MESSAGES or event.launched is not None:
        return event
    begun = [begin for begin, end in waits if begin <= event.end <= end]
    return replace(event, begin=max([event.begin, *begun]))


def _with_actual_size(call: CollectiveCall, event: ProfilerEvent, sizes: Mapping[str, int]) -> CollectiveCall:
    """Return *call* with the size that *event* moved; *sizes* has the bytes per element of each dtype."""
    if event.elements in (None, call.elements):
        return call
    return replace(call, elements=event.elements, bytes=event.elements * sizes[call.dtype])


def _first_match(
    call: CollectiveCall, issue: ProfilerEvent, backend_events: Sequence[ProfilerEvent]
) -> ProfilerEvent | None:
    names = _BACKEND_OPERATIONS.get(call.op, (call.op,))
    return next(
        (
            event
            for event in backend_events
            if event.name in names
            and (event.begin if event.launched is None else event.launched) >= issue.begin
            and (call.op == _UNEVEN or event.elements in (None, call.elements))
        ),
        None,
    )
