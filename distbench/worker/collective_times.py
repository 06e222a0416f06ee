"""Time of work that all ranks of a group do at once, and whether their backend has an operation.

The slowest rank counts: a training waits for it. On a GPU the clock is CUDA's: events around all calls on the
stream that waits for them, so no host synchronises in between. On a CPU calls are complete when they return.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from distbench.core.rank_groups import RankGroups
from distbench.strategies.base import RankContext
from distbench.worker.collective_operations import OPERATIONS, GroupMembership

_TEST_ELEMENTS = 16
"""Elements per rank of the call that tests whether a backend supports an operation."""


def join_group(kind: RankGroups, context: RankContext) -> GroupMembership | None:
    """Create the groups of *kind* and return this rank's membership; None: in none. A collective call."""
    mine = None
    for ranks in kind.members:
        # every rank has to create every group, its own or not
        group = dist.new_group(list(ranks))
        if context.rank in ranks:
            nodes = len({context.node_of_rank[rank] for rank in ranks}) if context.node_of_rank else 1
            mine = GroupMembership(group, ranks, ranks.index(context.rank), context.device, nodes)
    return mine


def missing_operation(members: GroupMembership, op: str, dtype: torch.dtype) -> str:
    """Reason why the backend can't do *op*: a small one fails on all ranks; empty: it can. A collective call.

    Raises:
        RuntimeError: some ranks failed and others did not, so the operation is not missing.
    """
    failure = ""
    try:
        operation = OPERATIONS[op](members, _TEST_ELEMENTS * members.size, dtype)
        operation.fill()
        operation.call()
        operation.wrong_elements()
    except (RuntimeError, ValueError, TypeError) as error:
        failure = next(iter(str(error).splitlines()), "") or type(error).__name__
    failures = [""] * members.size
    dist.all_gather_object(failures, failure, group=members.group)
    if any(failures) and not all(failures):
        at = failures.index(next(filter(None, failures)))
        raise RuntimeError(f"{op} failed on rank {members.ranks[at]}, but not on others: {failures[at]}")
    return failure


def call_seconds(
    call: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None, count: int
) -> list[float]:
    """Seconds of *count* calls in a row: their mean on the slowest rank, then each on its slowest rank.

    A collective call of *group*, whose ranks wait for each other before the first call; None: of all ranks.
    """
    if device.type == "cuda":
        own = _time_on_cuda(call, device, group, count)
    else:
        dist.barrier(group)
        own = _time_on_host(call, count)
    seconds = torch.tensor([sum(own) / count, *own], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    # a call too short for the clock still takes some time
    return [max(float(value), 1e-9) for value in seconds]


def _time_on_host(call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each call, which is complete when it returns."""
    times = [time.perf_counter()]
    for _ in range(count):
        call()
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


def _time_on_cuda(
    call: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None, count: int
) -> list[float]:
    """Seconds of each call between CUDA events; the current stream waits for each call."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    dist.barrier(group)
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]
