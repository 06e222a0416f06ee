"""Profiled steps of a rank: times of its collectives, and how long each took without waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from distbench.core.grouping import group_pairs
from distbench.metrics.base import PassContext
from distbench.metrics.communication.traffic import CollectiveCall
from distbench.metrics.profile import collective_wait
from distbench.metrics.profile.breakdown import CollectiveRun, clip_to_wait, match_collectives
from distbench.metrics.profile.exchange import Exchange
from distbench.traces.intervals import TimeInterval, difference, union
from distbench.traces.trace import ProfilerEvent, Trace, clip_to_step, starting_in


@dataclass
class ProfiledStep:
    """One profiled step of this rank."""

    interval: TimeInterval
    backend_events: list[ProfilerEvent]
    """Backend events of collectives in groups of several ranks."""
    comm: list[TimeInterval]
    exposed: list[TimeInterval]
    collectives: list[CollectiveRun] | None


def profiled_step(trace: Trace, interval: TimeInterval, calls: list[CollectiveCall]) -> ProfiledStep:
    """Build the step of *interval*, in which *calls* were made."""
    ranges = starting_in(trace.backend_events, interval)
    traffic = [event for event in ranges if event.name != "barrier"]
    matched = match_collectives(calls, starting_in(trace.host_calls, interval), traffic)
    # a group of one rank moves nothing, whatever its backend does
    alone = {done.event for done in matched or () if done.call.group_size == 1}
    waits = trace.marks.get("wait", [])
    ranges = [clip_to_wait(event, waits) for event in ranges if event not in alone]
    if matched is not None:
        matched = [replace(done, event=clip_to_wait(done.event, waits)) for done in matched]
    comm = clip_to_step(union(event.interval for event in ranges), interval)
    return ProfiledStep(interval, ranges, comm, difference(comm, trace.compute_intervals), matched)


def find_shortest_times(context: PassContext, trace: Trace, steps: list[ProfiledStep]) -> Exchange[None]:
    """Find the shortest time of each collective over the ranks of its group."""
    mine = [
        group_pairs((each.call.match_key, _timing(trace, each)) for each in step.collectives or ())
        for step in steps
    ]
    every: list[list[dict[Any, list[collective_wait.CollectiveTiming]]]] = yield mine
    for number, step in enumerate(steps):
        if step.collectives is None:
            continue
        seen: Counter[tuple[str, int | None]] = Counter()
        for place, done in enumerate(step.collectives):
            meets = done.call.match_key
            others = [(rank, of[number].get(meets, [])) for rank, of in enumerate(every) if number < len(of)]
            met = {rank: parts[seen[meets]] for rank, parts in others if seen[meets] < len(parts)}
            one_clock = len({context.nodes[rank] for rank in met}) == 1
            step.collectives[place] = replace(
                done, shortest_s=collective_wait.shortest_seconds([*met.values()], one_clock=one_clock)
            )
            seen[meets] += 1


def _timing(trace: Trace, done: CollectiveRun) -> collective_wait.CollectiveTiming:
    posted, began, end = (
        trace.origin_ns + round(at * 1e9) for at in (done.posted_at, done.event.begin, done.event.end)
    )
    return collective_wait.CollectiveTiming(posted, began, end, done.call.op)
