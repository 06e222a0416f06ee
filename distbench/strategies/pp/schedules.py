"""What the schedules of a pipeline need, and how long their ranks wait. Without torch.

By torch.distributed.pipelining of torch 2.13, whose names they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from distbench.strategies import _pipeline

ScheduleName = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


@dataclass(frozen=True)
class ScheduleRules:
    """An order in which the stages of a pipeline compute micro-batches."""

    source: str
    """URL of the paper."""
    stages_per_rank: range = range(1, 2)
    """How many stages a rank may have."""
    is_v_shaped: bool = False
    """Whether a rank has a stage from the front and its mirror image from the back."""
    needs_full_pipeline: bool = False
    """Whether it needs at least as many micro-batches as there are stages."""
    runs_in_rounds: bool = False
    """Whether micro-batches go through in rounds of equal size, as many rounds as ranks fit into them."""
    is_breadth_first: bool = False
    """Whether all micro-batches go through a stage of a rank before any goes through its next one."""
    splits_backward: bool = False
    """Whether gradients of weights are computed apart from those of activations."""

    @property
    def default_stages_per_rank(self) -> int:
        """Stages of a rank if nobody says how many."""
        return self.stages_per_rank.start

    def rank_of_stage(self, stage: int, ranks: int) -> int:
        """The rank of *ranks* that has *stage*."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self.is_v_shaped and turn % 2 else place

    def micro_batch_problem(self, micro_batches: int, ranks: int, stages_per_rank: int) -> str:
        """Why that many *micro_batches* can't be scheduled; empty if they can."""
        if self.needs_full_pipeline and micro_batches < ranks * stages_per_rank:
            return f"needs at least as many micro-batches as stages ({ranks * stages_per_rank})"
        rounds = max(1, micro_batches // ranks)
        if self.runs_in_rounds and micro_batches % rounds:
            return f"sends micro-batches through {ranks} ranks in {rounds} rounds of equal size"
        return ""


_TWO_OR_MORE = range(2, 1 << 16)
_ZERO_BUBBLE = "https://arxiv.org/abs/2401.10241"
_MEGATRON = "https://arxiv.org/abs/2104.04473"

SCHEDULES: dict[ScheduleName, ScheduleRules] = {
    "GPipe": ScheduleRules("https://arxiv.org/abs/1811.06965"),
    "1F1B": ScheduleRules(_MEGATRON, needs_full_pipeline=True),
    "Interleaved1F1B": ScheduleRules(_MEGATRON, _TWO_OR_MORE, runs_in_rounds=True),
    "LoopedBFS": ScheduleRules("https://arxiv.org/abs/2211.05953", _TWO_OR_MORE, is_breadth_first=True),
    "InterleavedZeroBubble": ScheduleRules(
        _ZERO_BUBBLE, _TWO_OR_MORE, runs_in_rounds=True, splits_backward=True
    ),
    "ZBVZeroBubble": ScheduleRules(_ZERO_BUBBLE, range(2, 3), is_v_shaped=True, splits_backward=True),
    "DualPipeV": ScheduleRules(
        "https://arxiv.org/abs/2412.19437",
        range(2, 3),
        is_v_shaped=True,
        needs_full_pipeline=True,
        splits_backward=True,
    ),
}

UNSPLIT_BACKWARD = "1F1B, GPipe, Interleaved1F1B or LoopedBFS"
"""Those that do not split the backward pass, in words."""
MAX_UNSHARDED_STAGES = 3
"""Stages of a rank that torch keeps gathered at a time, where they are sharded."""


def valid_micro_batches(name: ScheduleName, samples: int, ranks: int, stages_per_rank: int) -> Iterator[int]:
    """Numbers of micro-batches into which *samples* can be cut for a schedule."""
    for number in range(1, samples + 1):
        if samples % number == 0 and not SCHEDULES[name].micro_batch_problem(number, ranks, stages_per_rank):
            yield number


def schedule_bubble(name: ScheduleName, ranks: int, micro_batches: int, stages_per_rank: int) -> float | None:
    """Fraction of a step that a rank is idle, if all stages are equally fast and messages cost nothing.

    None: it follows from the order of passes alone. Schedules that split the backward pass depend on its
    halves, and with several stages a rank the formula needs a micro-batch for each rank.
    """
    if SCHEDULES[name].splits_backward or (stages_per_rank > 1 and micro_batches < ranks):
        return None
    return _pipeline.bubble_fraction(ranks, micro_batches, stages_per_rank)


def schedule_in_flight(name: ScheduleName, stage: int, stages: int, micro_batches: int) -> int | None:
    """Most micro-batches whose activations *stage* keeps at once; None: it has to be counted in the order.

    GPipe and LoopedBFS run all forward passes first.
    """
    if name == "1F1B":
        return _pipeline.activations_in_flight(stage, stages, micro_batches)
    return micro_batches if name in ("GPipe", "LoopedBFS") else None
