"""Break the steps of a trace down: each moment belongs to one cause, so that causes add up to the step.

Computation covers communication, and both cover copies: what is left of these is exposed, as
HolisticTraceAnalysis and TraceLens define it. Of kernels that overlap, the moment belongs to the one that
began first. The rest is idle, with its cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from distbench.analysis.traces.idle_causes import IdleCause, IdleTime, find_idle_times
from distbench.analysis.traces.steps import TraceStep
from distbench.analysis.traces.work import Work
from distbench.traces.intervals import TimeInterval, TimeIntervals, difference, union
from distbench.traces.trace import Trace

PieceKind = Literal["compute", "communication", "copy", "idle"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a step with its one cause."""

    begin: float
    end: float
    kind: PieceKind
    work: Work | None = None
    """The work that it is part of; None: it is idle."""
    idle: IdleTime | None = None
    """The gap that it is part of; None: it is not idle."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def break_down(trace: Trace, every: Sequence[Work], steps: Sequence[TraceStep]) -> list[list[Piece]]:
    """Pieces of each of *steps*, in order of time; they cover the step without overlap.

    Args:
        trace: The trace of the rank.
        every: All its work by begin.
        steps: Steps in order of time, without overlap.
    """
    span = steps[0].interval[0], steps[-1].interval[1]
    pieces: list[Piece] = []
    taken: list[TimeInterval] = []
    of_kinds: tuple[tuple[PieceKind, TimeIntervals], ...] = (
        ("compute", trace.blocked_intervals),
        ("communication", ()),
        ("copy", ()),
    )
    for kind, blocked in of_kinds:
        covered = union([*taken, *blocked]) if blocked else taken
        of_kind = (work for work in every if work.kind == kind)
        timed = (
            (work, trace.interval_in_step(work.event) if kind == "communication" else work.event.interval)
            for work in of_kind
        )
        found = [*_claim(timed, kind, span, covered)]
        pieces += found
        taken = union([*taken, *((piece.begin, piece.end) for piece in found)])
    pieces += [
        Piece(idle.begin, idle.end, "idle", idle=idle)
        for idle in find_idle_times(trace, every, difference([span], taken))
    ]
    pieces.sort(key=lambda piece: piece.begin)
    return [*_cut(pieces, steps)]


def _claim(
    found: Iterable[tuple[Work, TimeInterval]], kind: PieceKind, span: TimeInterval, taken: TimeIntervals
) -> Iterator[Piece]:
    """Yield the parts of the work *found*, with intervals, that neither earlier work covers nor *taken*."""
    covered, first = span[0], 0
    for work, interval in found:
        begin, end = max(interval[0], covered), min(interval[1], span[1])
        if end <= begin:
            continue
        covered = end
        while first < len(taken) and taken[first][1] <= begin:
            first += 1
        for other in range(first, len(taken)):
            if taken[other][0] >= end:
                break
            if begin < taken[other][0]:
                yield Piece(begin, taken[other][0], kind, work)
            begin = max(begin, taken[other][1])
        if begin < end:
            yield Piece(begin, end, kind, work)


def _cut(pieces: Sequence[Piece], steps: Sequence[TraceStep]) -> Iterator[list[Piece]]:
    """Yield *pieces* of each step, cut at its ends."""
    first = 0
    for step in steps:
        begin, end = step.interval
        while first < len(pieces) and pieces[first].end <= begin:
            first += 1
        inside = []
        for place in range(first, len(pieces)):
            piece = pieces[place]
            if piece.begin >= end:
                break
            if piece.begin < begin or piece.end > end:
                piece = replace(piece, begin=max(piece.begin, begin), end=min(piece.end, end))
            inside.append(piece)
        yield inside


RECOMPUTED = "recomputed"
"""Key of ``part_seconds``: computation that activation checkpointing does again, part of ``compute``."""


def idle_key(cause: IdleCause) -> str:
    """Key of ``part_seconds`` of the idle time that has *cause*, part of ``idle``."""
    return f"idle {cause}"


def part_seconds(pieces: Iterable[Piece]) -> dict[str, float]:
    """Seconds of *pieces* by their kind, by the cause of idle time, and of what is recomputed."""
    seconds: dict[str, float] = defaultdict(float)
    for piece in pieces:
        seconds[piece.kind] += piece.seconds
        if piece.idle is not None:
            seconds[idle_key(piece.idle.cause)] += piece.seconds
        elif piece.kind == "compute" and piece.work is not None and piece.work.is_recomputed:
            seconds[RECOMPUTED] += piece.seconds
    return dict(seconds)
