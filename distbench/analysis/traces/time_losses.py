"""Losses of a step: time in which nothing is computed for the first time, by cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from distbench.analysis.traces.breakdown import Piece
from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.idle_causes import IdleCause
from distbench.core.grouping import group_pairs
from distbench.traces.intervals import intersection, length

LossKind = Literal["exposed communication", "waiting for a rank", "exposed copy", "recomputation", "idle"]
_IDLE_NAMES: dict[IdleCause, str] = {
    "synchronisation": "synchronisation",
    "host": "host late",
    "launch": "launched, but not begun",
    "python": "between operations",
    "unknown": "unknown",
}
_ADVICE: dict[str, str] = {
    "exposed communication": "Start it earlier, so that computation hides it, or move fewer bytes.",
    "waiting for a rank": "Find out why that rank is late: its data, its host, its share of the work.",
    "exposed copy": "Copy from pinned memory with non_blocking=True, while the device computes.",
    "copy on the device": "Avoid what copies: contiguous(), clone(), cat(), in-place operations on views.",
    "recomputation": "Keep the activations of some layers, if memory allows.",
    "synchronisation": "Take .item(), print(tensor), .cpu() and the like out of the step.",
    "host": "Launch fewer kernels (torch.compile, CUDA graphs, a fused optimizer), or larger batches.",
    "launch": "See in the timeline which other stream the work waits for.",
    "python": "Fewer and larger operations, or torch.compile; a Python profiler shows what runs.",
    "unknown": "Profile one more warm-up step, so that the launch is in the trace.",
}
_MOST_FOLLOWING = 3


@dataclass(frozen=True)
class TimeLoss:
    """A cause of lost time."""

    kind: LossKind
    name: str
    following: tuple[str, ...]
    """Of idle time: the operators before which most of it lies."""
    seconds: float
    """Upper bound of what a step would save without it: its time in a step, mean over steps and ranks."""
    share: float
    """Part of the mean step, from 0 to 1."""
    rank: int
    """Rank that loses most by it."""
    rank_seconds: float
    """The same time on that rank."""
    advice: str


@dataclass(frozen=True)
class LostTime:
    """Lost time in a piece of a step, before equal causes are added up."""

    kind: LossKind
    name: str
    advice: str
    seconds: float
    following: str = ""


def find_losses(lost: Mapping[int, Sequence[LostTime]], step_s: float) -> list[TimeLoss]:
    """Add equal causes up, the largest first.

    Args:
        lost: Rank -> all its lost time in a mean step.
        step_s: Mean step of all ranks.
    """
    causes = group_pairs(
        ((part.kind, part.name, part.advice), (rank, part)) for rank, parts in lost.items() for part in parts
    )
    losses = []
    for (kind, name, advice), found in causes.items():
        by_rank = {rank: math.fsum(p.seconds for p in parts) for rank, parts in group_pairs(found).items()}
        most = max(by_rank, key=lambda rank: by_rank[rank])
        seconds = math.fsum(by_rank.values()) / len(lost)
        following = _most_following([part for _, part in found])
        losses.append(TimeLoss(kind, name, following, seconds, seconds / step_s, most, by_rank[most], advice))
    return sorted(losses, key=lambda loss: (-loss.seconds, loss.kind, loss.name))


def lost_times(of_steps: Sequence[Sequence[Piece]], call_sites: Mapping[int, str]) -> list[LostTime]:
    """Lost time of a rank in a mean step, without that of communication, which other ranks decide, too.

    Args:
        of_steps: Pieces of each of its steps.
        call_sites: Identity of a synchronising call -> file and line that made it, as far as known.
    """
    seconds = group_pairs(
        (_LostKey(*lost), piece.seconds)
        for pieces in of_steps
        for piece in pieces
        if (lost := _lost(piece, call_sites)) and piece.seconds > 0
    )
    return [
        LostTime(key.kind, key.name, key.advice, math.fsum(parts) / len(of_steps), key.following)
        for key, parts in seconds.items()
    ]


class _LostKey(NamedTuple):
    kind: LossKind
    name: str
    advice: str
    following: str


def _lost(piece: Piece, call_sites: Mapping[int, str]) -> tuple[LossKind, str, str, str] | None:
    """Kind, name, advice and following operator of what is lost in *piece*; None: nothing is."""
    if piece.idle is not None:
        cause, following = piece.idle.cause, piece.idle.following
        site = call_sites.get(id(piece.idle.call), "")
        name = _IDLE_NAMES[cause] + (f" at {site}" if site else "")
        return "idle", name, _ADVICE[cause], following.operator if following else ""
    if piece.work is None:
        return None
    if piece.kind == "copy":
        name = piece.work.event.name
        is_local = "DtoD" in name or "DeviceToDevice" in name
        return "exposed copy", name, _ADVICE["copy on the device" if is_local else "exposed copy"], ""
    if piece.kind == "compute" and piece.work.is_recomputed:
        return "recomputation", "activation checkpointing", _ADVICE["recomputation"], ""
    return None


def lost_in_communication(collectives: Iterable[TraceCollective], steps: int) -> Iterator[LostTime]:
    """Yield what a rank loses in *collectives*, in a mean step of its *steps*.

    Args:
        collectives: Matched with those of other ranks as far as possible.
        steps: Number of its steps.
    """
    kind: LossKind = "exposed communication"
    for call in collectives:
        waiting = length(intersection(call.exposed, [call.waited])) if call.waited else 0.0
        rest = length(call.exposed) - waiting
        if waiting > 0:
            name = f"rank {call.late_rank} late in {call.operator}"
            yield LostTime("waiting for a rank", name, _ADVICE["waiting for a rank"], waiting / steps)
        if rest > 0:
            yield LostTime(kind, call.operator, _ADVICE[kind], rest / steps)


def _most_following(parts: Sequence[LostTime]) -> tuple[str, ...]:
    """Operators before which most of the idle time of *parts* lies."""
    seconds = group_pairs((part.following, part.seconds) for part in parts if part.following)
    return tuple(sorted(seconds, key=lambda name: -math.fsum(seconds[name]))[:_MOST_FOLLOWING])
