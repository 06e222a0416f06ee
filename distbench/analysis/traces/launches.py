"""Launches of a rank: the time that they take the host, and how far that runs ahead of the device."""

from __future__ import annotations

import bisect
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distbench.analysis.traces.work import Work
from distbench.traces.intervals import TimeInterval
from distbench.traces.trace import ProfilerEvent, named_like

# calls that put work into a queue of the device: of kernels, graphs, copies and fills
_LAUNCHES = re.compile(r"Launch|Mem(cpy|set)\w*Async")


@dataclass(frozen=True)
class LaunchTimes:
    """Launches of the host in a step, or in the whole trace; None: not known, or none."""

    call_s: float | None
    """Time of the host in calls that launch work."""
    delay_s: float | None
    """Median time from the launch of a kernel or copy to its begin."""
    queue_depth: float | None
    """Median number of kernels and copies that wait on the device when the host launches another.

    Near 0 the device waits for the host.
    """


class Launches:
    """All launches in the trace of a rank."""

    def __init__(self, every: Iterable[Work], runtime_calls: Sequence[ProfilerEvent]) -> None:
        known = (w.event for w in every if w.event.launched is not None and w.event.launch_thread is not None)
        pairs = sorted((event.launched or 0.0, event.begin) for event in known)
        begun = sorted(begin for _, begin in pairs)
        self._moments = [launched for launched, _ in pairs]
        self._delays = [begin - launched for launched, begin in pairs]
        self._depths = [place - bisect.bisect_right(begun, pair[0]) for place, pair in enumerate(pairs)]
        calls = sorted(call.interval for call in named_like(_LAUNCHES, runtime_calls))
        self._call_begins = [begin for begin, _ in calls]
        self._call_seconds = [end - begin for begin, end in calls]

    def within(self, host: TimeInterval) -> LaunchTimes:
        """Launches while the host was in the interval *host*."""
        seconds = _part(self._call_begins, self._call_seconds, host)
        delays, depths = (_part(self._moments, each, host) for each in (self._delays, self._depths))
        return LaunchTimes(
            sum(seconds) if seconds else None,
            statistics.median(delays) if delays else None,
            statistics.median(depths) if depths else None,
        )


def _part(moments: Sequence[float], values: Sequence[float], interval: TimeInterval) -> Sequence[float]:
    """*values* of those *moments*, which are sorted, that are in *interval*."""
    first, last = (bisect.bisect_left(moments, end) for end in interval)
    return values[first:last]
