"""Profiled step of a pipeline: the passes of its stages, and the waiting time of each rank."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.ranks import mean_by_rank
from distbench.core.grouping import group_by, group_pairs
from distbench.record import Record

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
PASS_KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)


@dataclass(frozen=True)
class PipelinePass:
    """A pass of a stage over a micro-batch; times in seconds from the start of the step."""

    rank: int
    stage: int
    kind: str
    micro_batch: int
    begin: float
    end: float


@dataclass(frozen=True)
class StageActivations:
    """A stage and the number of micro-batches whose activations it kept at once; None: not recorded."""

    number: int
    in_flight: int | None
    in_flight_theory: int | None
    micro_batch_bytes: float | None
    """Bytes that its forward pass over a micro-batch leaves: the median over those of the counted step."""

    @property
    def activations_theory(self) -> float | None:
        """Bytes by the number of micro-batches in flight in the schedule's theory; None: unknown."""
        if self.in_flight_theory is None or self.micro_batch_bytes is None:
            return None
        return self.in_flight_theory * self.micro_batch_bytes


@dataclass(frozen=True)
class RankWaits:
    """Waiting time of a rank, mean over the profiled steps, in seconds and as shares of the step."""

    rank: int
    stages: tuple[StageActivations, ...]
    step_s: float
    bubble: float | None
    """None if the times of messages are unknown."""
    bubble_s: float | None
    message_s: float | None
    activations: float | None
    """Largest bytes of activations at the end of a phase of the counted step."""

    @property
    def activations_theory(self) -> float | None:
        """Bytes if each stage keeps as many micro-batches as the schedule says; None: unknown.

        With several stages an upper bound: their maxima need not coincide.
        """
        sizes = [each.activations_theory for each in self.stages]
        known = [size for size in sizes if size is not None]
        return math.fsum(known) if len(known) == len(sizes) else None


def pipeline_passes(record: Record) -> list[PipelinePass]:
    """Passes of the kept step; impossible rows are left out."""
    rows = record.tables.get("pipeline", [])
    return [
        PipelinePass(row["rank"], row["stage"], row["pass"], row["micro_batch"], row["begin_s"], row["end_s"])
        for row in rows
        if _is_valid(row)
    ]


def _is_valid(row: Mapping[str, Any]) -> bool:
    """True if *row* describes a pass: a foreign record may hold anything."""
    counts = all(_is_count(row.get(key)) for key in ("rank", "stage", "micro_batch"))
    times = [row.get(key) for key in ("begin_s", "end_s")]
    known = all(isinstance(time, int | float) and math.isfinite(time) for time in times)
    return counts and known and row.get("pass") in PASS_KINDS and row["begin_s"] <= row["end_s"]


def rank_waits(record: Record) -> list[RankWaits]:
    """Waiting time of each profiled rank of a pipeline, by rank."""
    stages = group_pairs({(each.rank, each.stage): None for each in pipeline_passes(record)})
    if not stages:
        # the other tables of a trial without a pipeline need not be read
        return []
    means = {name: mean_by_rank(record, name) for name in ("profile_step_s", "bubble", "bubble_s")}
    transfers = mean_by_rank(record, "pipeline_transfer_s")
    left, kept = _activation_bytes(record), mean_by_rank(record, "memory_activations")
    return [
        RankWaits(
            rank,
            tuple(_stage(record, number, left.get((rank, number))) for number in sorted(numbers)),
            means["profile_step_s"][rank],
            means["bubble"].get(rank),
            means["bubble_s"].get(rank),
            transfers.get(rank),
            kept.get(rank),
        )
        for rank, numbers in sorted(stages.items())
        if rank in means["profile_step_s"]
    ]


def _stage(record: Record, number: int, left: float | None) -> StageActivations:
    kept, theory = (record.effective.get(key) for key in ("in_flight", "in_flight_theory"))
    return StageActivations(number, _count_at(kept, number), _count_at(theory, number), left)


def _activation_bytes(record: Record) -> dict[tuple[int, int], float]:
    """Rank and stage -> median bytes of activations that a forward pass over a micro-batch leaves."""
    of_ranks = group_by(
        (
            row
            for row in record.tables.get("memory", [])
            if _is_count(row.get("activations")) and _is_count(row.get("rank"))
        ),
        lambda row: int(row["rank"]),
    )
    grown = group_pairs(
        ((rank, after["stage"]), after["activations"] - before["activations"])
        for rank, rows in of_ranks.items()
        for before, after in itertools.pairwise(rows)
        # other things precede the first pass, such as the batch
        if after.get("phase") == "forward"
        and _is_count(after.get("stage"))
        and _is_count(before.get("stage"))
    )
    return {place: statistics.median(sizes) for place, sizes in grown.items()}


def _count_at(counts: Any, place: int) -> int | None:
    is_there = isinstance(counts, Sequence) and place < len(counts) and _is_count(counts[place])
    return int(counts[place]) if is_there else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
