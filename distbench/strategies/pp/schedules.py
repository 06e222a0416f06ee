"""What the schedules of a pipeline need, and how long their ranks wait. Without torch.

By torch.distributed.pipelining of torch 2.13, whose names they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from distbench.strategies import _pipeline

Name = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


@dataclass(frozen=True)
class Schedule:
    """An order in which the stages of a pipeline compute micro-batches."""

    source: str
    """URL of the paper."""
    per_rank: range = range(1, 2)
    """How many stages a rank may have."""
    is_v: bool = False
    """Whether a rank has a stage from the front and its mirror image from the back."""
    fills: bool = False
    """Whether it needs at least as many micro-batches as there are stages."""
    in_rounds: bool = False
    """Whether micro-batches go through in rounds of equal size, as many rounds as ranks fit into them."""
    is_breadth_first: bool = False
    """Whether all micro-batches go through a stage of a rank before any goes through its next one."""
    splits_backward: bool = False
    """Whether gradients of weights are computed apart from those of activations."""

    @property
    def default_per_rank(self) -> int:
        """Stages of a rank if nobody says how many."""
        return self.per_rank.start

    def owner(self, stage: int, ranks: int) -> int:
        """The rank of *ranks* that has *stage*."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self.is_v and turn % 2 else place

    def unfit(self, micro_batches: int, ranks: int, per_rank: int) -> str:
        """Why that many *micro_batches* can't be scheduled; empty if they can."""
        if self.fills and micro_batches < ranks * per_rank:
            return f"needs at least as many micro-batches as stages ({ranks * per_rank})"
        rounds = max(1, micro_batches // ranks)
        if self.in_rounds and micro_batches % rounds:
            return f"sends micro-batches through {ranks} ranks in {rounds} rounds of equal size"
        return ""


_SEVERAL = range(2, 1 << 16)
_ZERO_BUBBLE = "https://arxiv.org/abs/2401.10241"
_MEGATRON = "https://arxiv.org/abs/2104.04473"

SCHEDULES: dict[Name, Schedule] = {
    "GPipe": Schedule("https://arxiv.org/abs/1811.06965"),
    "1F1B": Schedule(_MEGATRON, fills=True),
    "Interleaved1F1B": Schedule(_MEGATRON, _SEVERAL, in_rounds=True),
    "LoopedBFS": Schedule("https://arxiv.org/abs/2211.05953", _SEVERAL, is_breadth_first=True),
    "InterleavedZeroBubble": Schedule(_ZERO_BUBBLE, _SEVERAL, in_rounds=True, splits_backward=True),
    "ZBVZeroBubble": Schedule(_ZERO_BUBBLE, range(2, 3), is_v=True, splits_backward=True),
    "DualPipeV": Schedule(
        "https://arxiv.org/abs/2412.19437", range(2, 3), is_v=True, fills=True, splits_backward=True
    ),
}

WHOLE_BACKWARD = "1F1B, GPipe, Interleaved1F1B or LoopedBFS"
"""Those that do not split the backward pass, in words."""
ACTIVE = 3
"""Stages of a rank that torch keeps gathered at a time, where they are sharded."""


def fitting(name: Name, samples: int, ranks: int, per_rank: int) -> Iterator[int]:
    """Numbers of micro-batches into which *samples* can be cut for a schedule."""
    for number in range(1, samples + 1):
        if samples % number == 0 and not SCHEDULES[name].unfit(number, ranks, per_rank):
            yield number


def bubble(name: Name, ranks: int, micro_batches: int, per_rank: int) -> float | None:
    """Fraction of a step that a rank is idle, if all stages are equally fast and messages cost nothing.

    None: it follows from the order of passes alone. Schedules that split the backward pass depend on its
    halves, and with several stages a rank the formula needs a micro-batch for each rank.
    """
    if SCHEDULES[name].splits_backward or (per_rank > 1 and micro_batches < ranks):
        return None
    return _pipeline.bubble(ranks, micro_batches, per_rank)


def in_flight(name: Name, stage: int, stages: int, micro_batches: int) -> int | None:
    """Most micro-batches whose activations *stage* keeps at once; None: it has to be counted in the order.

    GPipe and LoopedBFS run all forward passes first.
    """
    if name == "1F1B":
        return _pipeline.in_flight(stage, stages, micro_batches)
    return micro_batches if name in ("GPipe", "LoopedBFS") else None
