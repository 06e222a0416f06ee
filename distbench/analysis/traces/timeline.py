"""The step in the middle of a trace, as lanes of a timeline.

The ranks of a job have the same step there, so that their lanes can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, Activity, RankStep
from distbench.analysis.traces.breakdown import Piece
from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.steps import TraceStep
from distbench.traces.intervals import intersection, length
from distbench.traces.trace import ProfilerEvent

_RESOLUTION = 2000
"""Gaps shorter than the step over this number are not shown: a screen is hardly wider."""
_MOST_ACTIVITIES = 500


def middle_step(
    rank: int,
    steps: Sequence[TraceStep],
    of_steps: Sequence[Sequence[Piece]],
    copies: Iterable[ProfilerEvent],
) -> tuple[TraceStep, RankStep]:
    """Step in the middle of *steps* of *rank*, and its computation and *copies*, from 0 on.

    Args:
        rank: Global rank.
        steps: Steps in order of time.
        of_steps: Pieces of each step.
        copies: All copies of the rank.
    """
    middle = (len(steps) - 1) // 2
    step, pieces = steps[middle], of_steps[middle]
    found = sorted([*_computation(pieces), *_copies(copies, step)], key=lambda activity: activity.begin)
    begin = step.interval[0]
    shifted = tuple(replace(each, begin=each.begin - begin, end=each.end - begin) for each in found)
    busy = sum(piece.seconds for piece in pieces if piece.idle is None)
    whole = RankStep(rank, 0.0, step.seconds, busy, step.seconds / _RESOLUTION, "", shifted)
    return step, whole.merged_to(_MOST_ACTIVITIES)


def _computation(pieces: Iterable[Piece]) -> Iterator[Activity]:
    for piece in pieces:
        if piece.kind == "compute" and piece.work is not None:
            name = "recomputation" if piece.work.is_recomputed else "computation"
            yield Activity(COMPUTE, name, "", piece.begin, piece.end, piece.seconds)


def _copies(copies: Iterable[ProfilerEvent], step: TraceStep) -> Iterator[Activity]:
    for copy in copies:
        for part in intersection([copy.interval], [step.interval]):
            yield Activity(COPY, copy.name, "", *part, part[1] - part[0])


def with_collectives(of_rank: tuple[TraceStep, RankStep], collectives: Iterable[TraceCollective]) -> RankStep:
    """Step of a rank with its *collectives*, once these are matched with those of other ranks."""
    step, lanes = of_rank
    begin = step.interval[0]
    found = [
        Activity(
            COMMUNICATION,
            call.op,
            call.group or "",
            part[0] - begin,
            part[1] - begin,
            part[1] - part[0],
            length(intersection([part], call.exposed)),
            length(intersection([part], [call.waited])) if call.waited else 0.0,
        )
        for call in collectives
        for part in intersection(call.intervals, [step.interval])
    ]
    every = sorted([*lanes.activities, *found], key=lambda activity: activity.begin)
    return replace(lanes, activities=tuple(every)).merged_to(2 * _MOST_ACTIVITIES)
