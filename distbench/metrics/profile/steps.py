"""One profiled step of a rank: when its collectives ran, and how long each took apart from waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from distbench.core.grouping import gathered
from distbench.metrics.base import Session
from distbench.metrics.communication.traffic import Call
from distbench.metrics.profile import meeting
from distbench.metrics.profile.breakdown import Done, match, waited_for
from distbench.metrics.profile.intervals import Interval, difference, union
from distbench.metrics.profile.trace import Event, Trace, clipped, within


@dataclass
class Step:
    """One profiled step of this rank."""

    interval: Interval
    ranges: list[Event]
    """The backend running collectives of groups of several ranks."""
    comm: list[Interval]
    exposed: list[Interval]
    done: list[Done] | None


def made(trace: Trace, interval: Interval, calls: list[Call]) -> Step:
    """The step of *interval*, in which *calls* were made."""
    ranges = within(trace.ranges, interval)
    traffic = [event for event in ranges if event.name != "barrier"]
    matched = match(calls, within(trace.issues, interval), traffic)
    # a group of one rank moves nothing, whatever its backend does
    alone = {done.event for done in matched or () if done.call.group_size == 1}
    waits = trace.marks.get("wait", [])
    ranges = [waited_for(event, waits) for event in ranges if event not in alone]
    if matched is not None:
        matched = [replace(done, event=waited_for(done.event, waits)) for done in matched]
    comm = clipped(union(event.interval for event in ranges), interval)
    return Step(interval, ranges, comm, difference(comm, trace.compute), matched)


def compare_ranks(session: Session, trace: Trace, steps: list[Step]) -> None:
    """Find the shortest time of each collective over the ranks of its group."""
    mine = [gathered((each.call.meets, _part(trace, each)) for each in step.done or ()) for step in steps]
    every: list[list[dict[Any, list[meeting.Part]]]] = of_all_ranks(session, mine)
    for number, step in enumerate(steps):
        if step.done is None:
            continue
        seen: Counter[tuple[str, int | None]] = Counter()
        for place, done in enumerate(step.done):
            meets = done.call.meets
            others = [(rank, of[number].get(meets, [])) for rank, of in enumerate(every) if number < len(of)]
            met = {rank: parts[seen[meets]] for rank, parts in others if seen[meets] < len(parts)}
            one_clock = len({session.nodes[rank] for rank in met}) == 1
            step.done[place] = replace(done, shortest=meeting.shortest([*met.values()], one_clock=one_clock))
            seen[meets] += 1


def _part(trace: Trace, done: Done) -> meeting.Part:
    posted, began, end = (
        trace.origin_ns + round(at * 1e9) for at in (done.posted, done.event.begin, done.event.end)
    )
    return meeting.Part(posted, began, end, done.call.op)


def of_all_ranks(session: Session, mine: object) -> list[Any]:
    """What each rank has, of which *mine* is this one's. A collective call."""
    every: list[Any] = [mine] * session.world_size
    if session.world_size == 1:
        return every
    dist.all_gather_object(every, mine)
    return every
