"""Where the time of one profiled step goes: parts that add up to the step."""

from __future__ import annotations

from collections.abc import Iterable

from distbench.metrics._intervals import Interval, Intervals, difference, length, union
from distbench.metrics._trace import Event, Trace, clipped

PARTS = ("data", "forward", "backward", "optimizer", "exposed_comm", "other")


def parts(trace: Trace, step: Interval, comm: Intervals) -> dict[str, float]:
    """Return the seconds of each of ``PARTS`` in *step*; they add up to its length.

    *comm* is when collectives ran; of it only what no computation hides is taken, and taken out
    of whatever else stood at that time. On a CPU the other parts are wall time of the training
    thread; on a device they are the time in which it was busy with work launched in that part,
    so that its idle time is ``other``.
    """
    exposed = difference(clipped(comm, step), trace.compute)
    found = {"exposed_comm": length(exposed)}
    taken = exposed
    for name, intervals in _candidates(trace).items():
        own = difference(clipped(intervals, step), taken)
        found[name] = length(own)
        taken = union([*taken, *own])
    found["other"] = (step[1] - step[0]) - sum(found.values())
    return {name: found.get(name, 0.0) for name in PARTS}


def _candidates(trace: Trace) -> dict[str, list[Interval]]:
    marks = {name: union(trace.marks.get(name, [])) for name in ("data", "forward", "backward", "optimizer")}
    if not trace.on_device:
        return marks
    work = [*trace.kernels, *trace.copies]
    by_part = {name: _launched_in(work, marks[name]) for name in ("forward", "backward", "optimizer")}
    # the host prepares a batch while the device may still be busy: only what it waits for counts
    return {**by_part, "data": union([*marks["data"], *_launched_in(work, marks["data"])])}


def _launched_in(work: Iterable[Event], part: Intervals) -> list[Interval]:
    return union(
        event.interval
        for event in work
        if event.launched is not None and any(begin <= event.launched < end for begin, end in part)
    )
