"""Steps of a trace, on the clock of what computes: the device, or the host of a rank without one."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.traces.intervals import TimeInterval
from distbench.traces.trace import ProfilerEvent, Trace

ALWAYS: TimeInterval = (-math.inf, math.inf)
"""An interval that every moment is in."""


@dataclass(frozen=True)
class TraceStep:
    """One step of a rank."""

    name: str
    interval: TimeInterval
    host: TimeInterval = ALWAYS
    """When the host worked on it."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.interval[1] - self.interval[0]


def find_steps(trace: Trace) -> tuple[list[TraceStep], str]:
    """Find the steps of *trace*, and say what marks them.

    The device works through a step later than the host: its step runs from the first work that the host
    launched in the step to the first that it launched in the next one.
    """
    for found, marks in _host_steps(trace):
        steps = _on_device(trace, found) if trace.is_on_device else found
        if steps:
            return steps, marks
    return [whole_trace(trace)], "the whole trace: nothing in it marks steps"


def whole_trace(trace: Trace) -> TraceStep:
    """All work in *trace* as one step."""
    work = [*trace.compute_events, *trace.backend_events, *trace.copies]
    span = min((event.begin for event in work), default=0.0), max((event.end for event in work), default=0.0)
    return TraceStep("whole trace", span)


def _host_steps(trace: Trace) -> list[tuple[list[TraceStep], str]]:
    """Marks of steps on the host, the most certain first."""
    own = [TraceStep(str(i), interval, interval) for i, interval in enumerate(trace.marks.get("step", []))]
    # some versions have each twice
    named = {event.name: event for event in sorted(trace.steps, key=lambda event: -event.begin)}
    torch_steps = [
        TraceStep(name.partition("#")[2], event.interval, event.interval) for name, event in named.items()
    ]
    torch_steps.sort(key=lambda step: step.interval)
    return [
        (own, "marks of distbench"),
        (torch_steps, "ProfilerStep"),
        (_between_updates(trace.annotations), "ends of the optimizer's updates"),
    ]


def _between_updates(annotations: Sequence[ProfilerEvent]) -> list[TraceStep]:
    """Steps from the end of one update to the end of the next."""
    updates = [event for event in annotations if re.match(r"Optimizer\.step#", event.name)]
    # of several optimizers the one that steps least often
    names = sorted({event.name for event in updates}, key=lambda name: sum(e.name == name for e in updates))
    ends = sorted(event.end for event in updates if event.name in names[:1])
    return [TraceStep(str(i), pair, pair) for i, pair in enumerate(itertools.pairwise(ends))]


def _on_device(trace: Trace, steps: Sequence[TraceStep]) -> list[TraceStep]:
    """*steps* of the host as the device works through them; without those in which nothing was launched."""
    work = [*trace.kernels, *trace.backend_events, *trace.copies]
    # what was launched before the trace began belongs to no step in it
    known = [event for event in work if event.launch_thread is not None] or work
    every = sorted(
        (event.begin if event.launched is None else event.launched, event.begin, event.end) for event in known
    )
    launched = [launch for launch, _, _ in every]
    found: list[tuple[TraceStep, float, float]] = []
    for step in steps:
        first, last = (bisect.bisect_left(launched, moment) for moment in step.interval)
        if not (inside := every[first:last]):
            continue
        begin, end = min(begin for _, begin, _ in inside), max(end for _, _, end in inside)
        # if another stream runs ahead of the step before, that has no time of its own
        while found and found[-1][1] >= begin:
            found.pop()
        found.append((step, begin, end))
    ends = [begin for _, begin, _ in found[1:]] + [end for *_, end in found[-1:]]
    return [replace(step, interval=(begin, end)) for (step, begin, _), end in zip(found, ends, strict=True)]
