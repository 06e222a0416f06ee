"""A profiled step of a pipeline: the passes of its stages, and how long each rank waited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.ranks import work
from distbench.grouping import gathered
from distbench.record import Record

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)


@dataclass(frozen=True)
class Pass:
    """A pass of a stage over a micro-batch; times in seconds from the step's begin."""

    rank: int
    stage: int
    kind: str
    micro_batch: int
    begin: float
    end: float


@dataclass(frozen=True)
class Stage:
    """A stage, and of how many micro-batches it kept activations at once; None: not told."""

    number: int
    in_flight: int | None
    in_flight_theory: int | None


@dataclass(frozen=True)
class Waiting:
    """How long a rank waited, mean over the profiled steps; seconds, and shares of the step."""

    rank: int
    stages: tuple[Stage, ...]
    step_s: float
    bubble: float | None
    """None: not known when messages were under way."""
    bubble_s: float | None
    transfer_s: float | None


def passes(record: Record) -> list[Pass]:
    """Passes of the kept step; rows that no step can have are left out."""
    rows = record.tables.get("pipeline", [])
    return [
        Pass(row["rank"], row["stage"], row["pass"], row["micro_batch"], row["begin_s"], row["end_s"])
        for row in rows
        if _is_sound(row)
    ]


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether *row* is that of a pass: a foreign record may hold anything."""
    counts = all(_is_count(row.get(key)) for key in ("rank", "stage", "micro_batch"))
    times = [row.get(key) for key in ("begin_s", "end_s")]
    known = all(isinstance(time, int | float) and math.isfinite(time) for time in times)
    return counts and known and row.get("pass") in KINDS and row["begin_s"] <= row["end_s"]


def waiting(record: Record) -> list[Waiting]:
    """Each rank of a pipeline that was profiled, by its number."""
    stages = gathered({(each.rank, each.stage): None for each in passes(record)})
    means = {name: work(record, name) for name in ("profile_step_s", "bubble", "bubble_s")}
    transfers = work(record, "pipeline_transfer_s")
    return [
        Waiting(
            rank,
            tuple(_stage(record, number) for number in sorted(numbers)),
            means["profile_step_s"][rank],
            means["bubble"].get(rank),
            means["bubble_s"].get(rank),
            transfers.get(rank),
        )
        for rank, numbers in sorted(stages.items())
        if rank in means["profile_step_s"]
    ]


def _stage(record: Record, number: int) -> Stage:
    kept = [record.effective.get(key) for key in ("in_flight", "in_flight_theory")]
    return Stage(number, *(_at(each, number) for each in kept))


def _at(counts: Any, place: int) -> int | None:
    is_there = isinstance(counts, Sequence) and place < len(counts) and _is_count(counts[place])
    return int(counts[place]) if is_there else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
