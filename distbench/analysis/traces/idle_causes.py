"""Causes of idle time: what a device that had run dry waited for."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from distbench.analysis.traces.work import Work
from distbench.traces.intervals import TimeInterval, TimeIntervals
from distbench.traces.trace import ProfilerEvent, Trace, named_like

IdleCause = Literal["synchronisation", "host", "launch", "python", "unknown"]
IDLE_CAUSE_DOCS: dict[IdleCause, str] = {
    "synchronisation": "The device ran dry while the host waited for it (cudaStreamSynchronize, .item()); "
    "until the host launched again.",
    "host": "The host launched the next work only after the device had run dry.",
    "launch": "Work was launched, but had not begun: latency of the launch, or waiting for another stream.",
    "python": "On a rank without a device: between operations of torch, mostly Python.",
    "unknown": "The trace has no launch of the work that followed.",
}
_SYNCHRONISES = re.compile(r"(Stream|Device|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(WithStream)?$")


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Part of a gap in which nothing ran, with its cause."""

    begin: float
    end: float
    cause: IdleCause
    following: Work | None
    """The work that ended the gap."""
    call: ProfilerEvent | None = None
    """The call that synchronised, if that is the cause."""


def find_idle_times(trace: Trace, every: Sequence[Work], gaps: TimeIntervals) -> Iterator[IdleTime]:
    """Yield the parts of *gaps*, with causes; *every* has all work of the rank by begin."""
    begins = [work.event.begin for work in every]
    calls = synchronisations(trace)
    starts = [call.begin for call in calls]
    for gap in gaps:
        place = bisect.bisect_left(begins, gap[1])
        work = every[place] if place < len(every) and begins[place] == gap[1] else None
        launched = None if work is None else work.event.launched
        if not trace.is_on_device:
            yield IdleTime(*gap, "python", work)
        elif work is None or launched is None or work.event.launch_thread is None:
            yield IdleTime(*gap, "unknown", work)
        else:
            blocking = _blocking_call(calls, starts, gap[0], launched)
            yield from _parts(gap, min(launched, gap[1]), work, blocking)


def synchronisations(trace: Trace) -> list[ProfilerEvent]:
    """Calls in which the host waits for the device, by begin."""
    return sorted(named_like(_SYNCHRONISES, trace.runtime_calls), key=lambda call: call.begin)


def _blocking_call(
    calls: Sequence[ProfilerEvent], starts: Sequence[float], moment: float, before: float
) -> ProfilerEvent | None:
    """Call in which the host waited at *moment*, when the device ran dry, and which it left *before* that."""
    last = bisect.bisect_right(starts, moment)
    # each thread is in one call at a time, and a few threads launch
    for call in reversed(calls[max(last - 8, 0) : last]):
        if moment <= call.end <= before:
            return call
    return None


def _parts(
    gap: TimeInterval, launched: float, work: Work, blocking: ProfilerEvent | None
) -> Iterator[IdleTime]:
    if launched > gap[0]:
        cause: IdleCause = "host" if blocking is None else "synchronisation"
        yield IdleTime(gap[0], launched, cause, work, blocking)
    if launched < gap[1]:
        yield IdleTime(max(gap[0], launched), gap[1], "launch", work)
