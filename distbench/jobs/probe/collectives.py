"""Rates of collectives: alone, and after each layer of a training."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from distbench.core.rank_groups import GroupKind, RankGroups, rank_groups
from distbench.jobs.probe.clock import MAX_REPETITIONS, SharedClock, absent_row, measured_row, repeat
from distbench.jobs.probe.probed_model import ProbedModel
from distbench.metrics.communication.traffic import element_count
from distbench.strategies.base import RankContext
from distbench.worker.collective_operations import OPERATIONS, CollectiveOperation, GroupMembership
from distbench.worker.collective_times import join_group, missing_operation
from distbench.worker.layer_hooks import LayerCallHooks
from distbench.worker.trainer import Rows

_GROUPS: tuple[GroupKind, ...] = ("all", "node", "between")
_SIZES = (4 << 10, 256 << 10, 4 << 20)
"""Bytes of the full arrays of collectives: where latency decides, where bandwidth does, and between."""
_OPERATIONS_IN_STEP = ("all_reduce", "all_gather", "reduce_scatter")
_SIZES_IN_STEP = (_SIZES[0], _SIZES[-1])
_CALLS = 4
"""Calls in a row of a collective alone, so that a late start of a rank counts less."""
_MIN_PAIRS = 7
_MAX_CHANCE = 0.05
"""Probability that signs of differences of nothing look like this, above which nothing is identified."""


@dataclass(frozen=True)
class GroupOfRank:
    """Groups of one kind, and this rank's place in one of them."""

    kind: RankGroups
    members: GroupMembership | None
    """None: this rank is in none of them."""
    nodes: int
    """Nodes that the ranks of a group are on."""

    @classmethod
    def join_all(cls, context: RankContext) -> list[GroupOfRank]:
        """Groups of all kinds that have ranks, all ranks first; none for one rank. A collective call."""
        if context.world_size == 1:
            return []
        nodes = context.node_of_rank or [0] * context.world_size
        kinds = [kind for name in _GROUPS if (kind := rank_groups(name, nodes)).members]
        return [
            cls(
                kind, join_group(kind, context), max(len({nodes[r] for r in ranks}) for ranks in kind.members)
            )
            for kind in kinds
        ]

    @property
    def place(self) -> dict[str, Any]:
        """Cells of rows about these groups."""
        size = max(len(ranks) for ranks in self.kind.members)
        return {"group": self.kind.name, "group_size": size, "nodes": self.nodes}

    def unavailable_reason(self, op: str, dtype: torch.dtype) -> str:
        """Reason why the backend can't do *op*; empty: it can. A collective call of all ranks."""
        reason = missing_operation(self.members, op, dtype) if self.members else ""
        reasons = [""] * dist.get_world_size()
        dist.all_gather_object(reasons, reason)
        return next(filter(None, reasons), "")

    def operation(self, op: str, size: int, dtype: torch.dtype) -> CollectiveOperation | None:
        """Operation on an array of *size* bytes; None: this rank takes no part."""
        if self.members is None:
            return None
        return OPERATIONS[op](self.members, element_count(size, dtype.itemsize, self.members.size), dtype)


def collective_rates(groups: Sequence[GroupOfRank], dtype: torch.dtype, clock: SharedClock) -> Rows:
    """Rows of collectives alone."""
    rows: Rows = []
    measurements = [*itertools.product(groups, OPERATIONS)]
    for number, (group, op) in enumerate(measurements):
        place = {"op": op, **group.place}
        if reason := group.unavailable_reason(op, dtype):
            rows.append(absent_row("collective", reason, **place))
            continue
        for done, size in enumerate(_SIZES):
            share = clock.remaining_seconds("collective") / (
                (len(measurements) - number) * len(_SIZES) - done
            )
            seconds = _time_alone(group.operation(op, size, dtype), clock, share)
            rows.append(measured_row("collective", seconds, bytes=size, **place))
    return rows


def _time_alone(operation: CollectiveOperation | None, clock: SharedClock, seconds: float) -> list[float]:
    # ranks in no group wait for those that are in one
    call = operation.call if operation else _nothing
    return repeat(lambda: clock.time(call, _CALLS), seconds, _CALLS)


def _nothing() -> None:
    """Do nothing."""


def rates_in_step(model: ProbedModel, group: GroupOfRank, dtype: torch.dtype, clock: SharedClock) -> Rows:
    """Rows of collectives after each layer, forward and backward: steps with them minus steps without."""
    samples = model.samples[len(model.samples) // 2]
    hooks = model.install_hooks()
    try:
        model.forward_backward(samples)
        hooks.count = 0
        model.forward_backward(samples)
        calls = _equal_count(hooks.count)
        comparison = _Comparison(hooks, calls, partial(model.forward_backward, samples), clock)
        return _compare_all(comparison, group, dtype, {**group.place, "samples": samples})
    finally:
        hooks.remove()


def _equal_count(own: int) -> int:
    """*own* if all ranks have the same, else 0. A collective call."""
    ends = torch.tensor([own, -own])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    return own if int(ends[0]) == -int(ends[1]) else 0


@dataclass
class _Comparison:
    """Compare a training with and without a collective after each layer."""

    hooks: LayerCallHooks
    calls: int
    """Calls in a forward and backward pass; 0: none, or ranks differ."""
    work: Callable[[], object]
    clock: SharedClock

    def without(self) -> float:
        """Seconds without."""
        self.hooks.call = _nothing
        return self.clock.time(self.work)

    def with_operation(self, operation: CollectiveOperation) -> float:
        """Seconds with *operation*."""
        self.hooks.call = operation.call
        return self.clock.time(self.work)

    def difference(self, operation: CollectiveOperation, *, is_first: bool) -> float:
        """Seconds of a call of *operation*: a step with it, first or not, minus one without."""
        if is_first:
            after, before = self.with_operation(operation), self.without()
        else:
            before, after = self.without(), self.with_operation(operation)
        return (after - before) / self.calls


def _compare_all(
    comparison: _Comparison, group: GroupOfRank, dtype: torch.dtype, place: dict[str, Any]
) -> Rows:
    """Rows of all collectives in a step, in pairs that take turns; without those that take too long."""
    if not comparison.calls:
        reason = "the model has no layers that each rank calls equally often"
        return _absent_rows(dict.fromkeys(_OPERATIONS_IN_STEP, reason), **place)
    absent: dict[str, str] = {}
    chosen: dict[tuple[str, int], CollectiveOperation] = {}
    alone, seconds_left = comparison.without(), comparison.clock.remaining_seconds("collective_in_step")
    for op in _OPERATIONS_IN_STEP:
        if reason := group.unavailable_reason(op, dtype):
            absent[op] = reason
            continue
        sizes = {(op, size): _of_all(group, op, size, dtype) for size in _SIZES_IN_STEP}
        # a single size would not tell how the time grows
        expected = _MIN_PAIRS * math.fsum(alone + comparison.with_operation(each) for each in sizes.values())
        if expected > seconds_left:
            have = f"{max(seconds_left, 0):.2g} s are left"
            pairs = f"{_MIN_PAIRS} pairs of each size take {expected:.2g} s"
            absent[op] = f"{pairs}, but {have}; raise probe.seconds"
            continue
        chosen |= sizes
        seconds_left -= expected
    found: dict[tuple[str, int], list[float]] = {key: [] for key in chosen}
    for number in range(MAX_REPETITIONS if chosen else 0):
        if number >= _MIN_PAIRS and comparison.clock.remaining_seconds("collective_in_step") < 0:
            break
        for key, operation in chosen.items():
            found[key].append(comparison.difference(operation, is_first=number % 2 == 1))
    measured = [_difference(found[op, size], op=op, bytes=size, **place) for op, size in found]
    return [*measured, *_absent_rows(absent, **place)]


def _of_all(group: GroupOfRank, op: str, size: int, dtype: torch.dtype) -> CollectiveOperation:
    operation = group.operation(op, size, dtype)
    assert operation is not None, "all ranks are in the group of all"
    return operation


def _absent_rows(reasons: Mapping[str, str], **place: Any) -> Rows:
    """Rows of operations that were measured at no size, by the *reasons* of each."""
    return [
        absent_row("collective_in_step", reason, op=op, bytes=size, **place)
        for op, reason in reasons.items()
        for size in _SIZES_IN_STEP
    ]


def _difference(seconds: Sequence[float], **place: Any) -> dict[str, Any]:
    """Row of a collective in a step by differences in *seconds*; not identified if these may be noise."""
    median, count = statistics.median(seconds), len(seconds)
    above = sum(each > 0 for each in seconds)
    # sign test: as many or more differences above 0 if either sign is equally likely
    chance = sum(math.comb(count, more) for more in range(above, count + 1)) / 2**count
    reason = f"not identified: {above} of {count} pairs are slower with it" if chance > _MAX_CHANCE else ""
    return {
        "rate": "collective_in_step",
        **place,
        "seconds": median,
        "relative_sd": statistics.stdev(seconds) / abs(median) if median else None,
        "repetitions": count,
        "reason": reason,
    }
