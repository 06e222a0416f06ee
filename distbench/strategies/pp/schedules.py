"""Pipeline schedules: requirements, bubble and activations in flight. Imports no torch.

They follow torch.distributed.pipelining of torch 2.13, and have its names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from distbench.strategies.theory import pipeline_parallelism

ScheduleName = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


@dataclass(frozen=True)
class ScheduleRules:
    """Requirements of a schedule: an order in which the stages of a pipeline compute micro-batches."""

    stages_per_rank: range = range(1, 2)
    """Supported numbers of stages per rank."""
    is_v_shaped: bool = False
    """True if a rank has a stage from the front and its mirror image from the back."""
    needs_full_pipeline: bool = False
    """True if it needs at least as many micro-batches as there are stages."""
    runs_in_rounds: bool = False
    """True if micro-batches run in rounds of equal size; the number of rounds is micro_batches // ranks."""
    is_breadth_first: bool = False
    """True if all micro-batches finish a stage of a rank before any enters its next one."""
    splits_backward: bool = False
    """True if gradients of weights are computed separately from those of activations."""

    @property
    def default_stages_per_rank(self) -> int:
        """Default number of stages per rank."""
        return self.stages_per_rank.start

    def rank_of_stage(self, stage: int, ranks: int) -> int:
        """Rank, of *ranks* ranks, that holds *stage*."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self.is_v_shaped and turn % 2 else place

    def micro_batch_problem(self, micro_batches: int, ranks: int, stages_per_rank: int) -> str:
        """Reason why *micro_batches* micro-batches can't be scheduled; empty if they can."""
        if self.needs_full_pipeline and micro_batches < ranks * stages_per_rank:
            return f"needs at least as many micro-batches as stages ({ranks * stages_per_rank})"
        rounds = max(1, micro_batches // ranks)
        if self.runs_in_rounds and micro_batches % rounds:
            return f"sends micro-batches through {ranks} ranks in {rounds} rounds of equal size"
        return ""


_TWO_OR_MORE = range(2, 1 << 16)

SCHEDULES: dict[ScheduleName, ScheduleRules] = {
    "GPipe": ScheduleRules(),
    "1F1B": ScheduleRules(needs_full_pipeline=True),
    "Interleaved1F1B": ScheduleRules(_TWO_OR_MORE, runs_in_rounds=True),
    "LoopedBFS": ScheduleRules(_TWO_OR_MORE, is_breadth_first=True),
    "InterleavedZeroBubble": ScheduleRules(_TWO_OR_MORE, runs_in_rounds=True, splits_backward=True),
    "ZBVZeroBubble": ScheduleRules(range(2, 3), is_v_shaped=True, splits_backward=True),
    "DualPipeV": ScheduleRules(
        range(2, 3),
        is_v_shaped=True,
        needs_full_pipeline=True,
        splits_backward=True,
    ),
}

UNSPLIT_BACKWARD = "1F1B, GPipe, Interleaved1F1B or LoopedBFS"
"""Schedules that do not split the backward pass, in words."""
MAX_UNSHARDED_STAGES = 3
"""Maximum number of sharded stages of a rank that torch keeps gathered at a time."""


def valid_micro_batches(name: ScheduleName, samples: int, ranks: int, stages_per_rank: int) -> Iterator[int]:
    """Numbers of micro-batches into which *samples* can be split for a schedule."""
    for number in range(1, samples + 1):
        if samples % number == 0 and not SCHEDULES[name].micro_batch_problem(number, ranks, stages_per_rank):
            yield number


def schedule_bubble(name: ScheduleName, ranks: int, micro_batches: int, stages_per_rank: int) -> float | None:
    """Fraction of a step that a rank is idle, if all stages are equally fast and messages cost nothing.

    None: only the order of passes determines it. Schedules that split the backward pass depend on its halves,
    and with several stages per rank the formula needs a micro-batch for each rank.
    """
    if SCHEDULES[name].splits_backward or (stages_per_rank > 1 and micro_batches < ranks):
        return None
    return pipeline_parallelism.bubble_fraction(ranks, micro_batches, stages_per_rank)


def schedule_in_flight(name: ScheduleName, stage: int, stages: int, micro_batches: int) -> int | None:
    """Maximum number of micro-batches whose activations *stage* holds at once; None: count in the order.

    GPipe and LoopedBFS run all forward passes first.
    """
    if name == "1F1B":
        return pipeline_parallelism.activations_in_flight(stage, stages, micro_batches)
    return micro_batches if name in ("GPipe", "LoopedBFS") else None
