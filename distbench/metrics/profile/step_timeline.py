"""Timeline of one profiled step, compact enough for a record. Without torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import TableColumn, TableSpec
from distbench.core.grouping import group_pairs
from distbench.traces.intervals import (
    TimeInterval,
    TimeIntervals,
    bridge_gaps,
    difference,
    intersection,
    length,
    union,
)
from distbench.traces.trace import Trace, clip_to_step, launched_in

MAX_RANKS = 4
MAX_INTERVALS = 250
"""Per rank: a screen is hardly wider."""
_RESOLUTION = 1000
"""Gaps shorter than the step over this number are always bridged: a screen does not show them."""
_DIGITS = 7
"""Decimal places of seconds: a profiler's clock is no finer than a tenth of a microsecond."""

TABLE = TableSpec(
    "timeline",
    f"One profiled step, that of median length, of up to {MAX_RANKS} ranks: the first, the last, those "
    "with the most and the least work. The first row of a rank is of kind step. Times are relative to "
    "the start of the step on the first of these ranks on the same node, by the clock of that node; "
    "clocks of several nodes are not compared.",
    (
        TableColumn("step", "bigint", "Which profiled step, from 0 on."),
        TableColumn("kind", "varchar", "step, compute, communication or copy (on, to and from a GPU)."),
        TableColumn(
            "name",
            "varchar",
            "For computation, its phase (data, forward, backward, optimizer, other); for "
            "communication, the collective that was called; for a copy, its direction.",
        ),
        TableColumn(
            "group",
            "varchar",
            "Global ranks of a collective; null: unknown, or none. A word of SQL: write it in quotes.",
        ),
        TableColumn("begin_s", "double", "When it began.", "s"),
        TableColumn("end_s", "double", "When it ended.", "s"),
        TableColumn(
            "busy_s", "double", "Time in which it was active; for a step, in which anything ran.", "s"
        ),
        TableColumn("exposed_s", "double", "For communication: exposed time.", "s"),
        TableColumn("wait_s", "double", "For communication: waiting for the slowest rank of the group.", "s"),
        TableColumn("bridged_s", "double", "For a step: gaps up to this length are not shown.", "s"),
        TableColumn(
            "trace", "varchar", "For a step: the file with the rank's full trace, next to the record."
        ),
    ),
)


@dataclass(frozen=True)
class ProfiledStepTimes:
    """Durations and start times of the profiled steps of one rank."""

    seconds: list[float]
    work: list[float]
    """Without exposed waiting; equal to ``seconds`` if that is not known."""
    began_ns: list[int]
    """On the clock of its node."""


@dataclass(frozen=True)
class TimelineSelection:
    """Step and ranks to record."""

    step: int
    offsets: dict[int, float]
    """Rank -> seconds from the first of these ranks on its node that began the step."""
    offsets_of_all: dict[int, float]
    """The same for all ranks."""


@dataclass(frozen=True)
class CollectiveInterval:
    """A collective of the recorded step."""

    name: str
    group: str | None
    interval: TimeInterval
    wait_interval: TimeInterval | None = None


def select_step(times: Sequence[ProfiledStepTimes], nodes: Sequence[int]) -> TimelineSelection | None:
    """Select the step of median length by its slowest rank, and at most ``MAX_RANKS`` ranks; None: no step.

    Args:
        times: By rank.
        nodes: Node number of each rank.
    """
    steps = min(len(rank.seconds) for rank in times)
    if not steps:
        return None
    slowest = [max(rank.seconds[step] for rank in times) for step in range(steps)]
    step = slowest.index(statistics.median_low(slowest))
    ranks = [*range(len(times))]
    if len(times) > MAX_RANKS:
        by_work = sorted(ranks, key=lambda rank: times[rank].work[step])
        ranks = sorted({0, len(times) - 1, by_work[0], by_work[-1]})
    began = [rank.began_ns[step] for rank in times]
    return TimelineSelection(
        step, _start_offsets(began, ranks, nodes), _start_offsets(began, range(len(times)), nodes)
    )


def _start_offsets(began_ns: Sequence[int], ranks: Sequence[int], nodes: Sequence[int]) -> dict[int, float]:
    """Rank -> seconds from the first of *ranks* on its node that began."""
    of_nodes = group_pairs((nodes[rank], began_ns[rank]) for rank in ranks)
    return {rank: (began_ns[rank] - min(of_nodes[nodes[rank]])) / 1e9 for rank in ranks}


def timeline_rows(
    trace: Trace, step: TimeInterval, collectives: Iterable[CollectiveInterval], number: int, offset: float
) -> list[dict[str, Any]]:
    """Rows of this rank in the table ``timeline``.

    Args:
        trace: Trace of the rank.
        step: Begin and end of the recorded step on the clock of the trace.
        collectives: Collectives of the step in groups of several ranks.
        number: Number of the step.
        offset: Seconds from time 0 of the table to the begin of the step.
    """
    pieces, waits = _intervals_by_key(trace, collectives)
    pieces = {key: inside for key, found in pieces.items() if (inside := clip_to_step(union(found), step))}
    bridged = (step[1] - step[0]) / _RESOLUTION
    while sum(len(bridge_gaps(found, bridged)) for found in pieces.values()) > max(
        MAX_INTERVALS, len(pieces)
    ):
        bridged *= 1.25
    made = [
        _row(key, run, trace, union(waits.get(key, ())))
        for key, found in pieces.items()
        for run in bridge_gaps(found, bridged)
    ]
    busy = length(union(interval for found in pieces.values() for interval in found))
    whole = {"kind": "step", "name": "", **_span(step), "busy_s": busy, "bridged_s": bridged}
    shift = offset - step[0]
    every = [whole, *sorted(made, key=lambda row: row["begin_s"])]
    return [
        {"step": number, **_rounded({**row, **_span((row["begin_s"] + shift, row["end_s"] + shift))})}
        for row in every
    ]


_Key = tuple[str, str, str | None]


def _intervals_by_key(
    trace: Trace, collectives: Iterable[CollectiveInterval]
) -> tuple[dict[_Key, list[TimeInterval]], dict[_Key, list[TimeInterval]]]:
    """Intervals by kind, name and group, and the parts of them in which a collective waited."""
    pieces: dict[_Key, list[TimeInterval]] = {}
    waits: dict[_Key, list[TimeInterval]] = {}
    for name, found in _compute_intervals(trace).items():
        pieces[("compute", name, None)] = [*found]
    for copy in trace.copies:
        pieces.setdefault(("copy", copy.name, None), []).append(copy.interval)
    for one in collectives:
        key = ("communication", one.name, one.group)
        pieces.setdefault(key, []).append(one.interval)
        waits.setdefault(key, []).extend([one.wait_interval] if one.wait_interval else [])
    return pieces, waits


def _compute_intervals(trace: Trace) -> Mapping[str, TimeIntervals]:
    """Compute intervals of the rank by part of the step, including batch preparation on the host."""
    marks = {name: union(trace.marks.get(name, [])) for name in ("forward", "backward", "optimizer")}
    # an update may run inside the backward pass
    marks["backward"] = difference(marks["backward"], marks["optimizer"])
    if trace.is_on_device:
        found = {name: launched_in(trace.kernels, part) for name, part in marks.items()}
    else:
        found = {name: intersection(trace.compute_intervals, part) for name, part in marks.items()}
    found = {"data": union(trace.marks.get("data", [])), **found}
    known = union(interval for intervals in found.values() for interval in intervals)
    return {**found, "other": difference(trace.compute_intervals, known)}


def _row(key: _Key, run: TimeIntervals, trace: Trace, waits: TimeIntervals) -> dict[str, Any]:
    kind, name, group = key
    row = {"kind": kind, "name": name, **_span((run[0][0], run[-1][1])), "busy_s": length(run)}
    if kind != "communication":
        return row
    exposed, waited = difference(run, trace.compute_intervals), intersection(run, waits)
    known = {} if group is None else {"group": group, "wait_s": length(waited)}
    return {**row, "exposed_s": length(exposed), **known}


def _span(interval: TimeInterval) -> dict[str, float]:
    return {"begin_s": interval[0], "end_s": interval[1]}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, _DIGITS) if isinstance(value, float) else value for key, value in row.items()}
