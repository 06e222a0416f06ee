"""Time every collective operation, dtype and size in every group, on one rank.

Timing follows nccl-tests: after a warm-up and a barrier a number of calls without a pause, on the clock of
each rank. The slowest rank counts (nccl-tests shows the mean over ranks by default; a training waits for
the slowest).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.core.rank_groups import rank_groups
from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.jobs.links import CollectivesOptions, busbw_column
from distbench.metrics.communication.traffic import bus_factor, element_count
from distbench.strategies.base import RankContext
from distbench.worker.collective_operations import OPERATIONS, CollectiveOperation, GroupMembership
from distbench.worker.collective_times import call_seconds, join_group, missing_operation
from distbench.worker.trainer import RankResult, Rows


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; the first rank of each group has the rows of the group."""
    asked = trial.job.options_as(CollectivesOptions)
    rows: Rows = []
    with phases.phase("build"):
        kinds = [rank_groups(name, context.node_of_rank or [0] * context.world_size) for name in asked.groups]
        joined = {kind.name: join_group(kind, context) for kind in kinds if kind.members}
    with phases.phase("collectives"):
        numbers = itertools.count()
        for kind, op, dtype in itertools.product(kinds, asked.operations, asked.dtypes):
            phases.progress.report("collectives", next(numbers))
            place = {"op": op, "dtype": dtype, "group": kind.name}
            if kind.reason:
                rows += [{**place, "reason": kind.reason}] if context.rank == 0 else []
                continue
            if members := joined[kind.name]:
                for row in _measure(members, op, dtype, asked):
                    phases.progress.report("collectives", next(numbers))
                    rows += [{**place, **row}] if members.position == 0 else []
            # ranks in no group of this kind wait, and so do groups that finish first
            dist.barrier()
    return _result(asked, rows)


def _measure(
    members: GroupMembership, op: str, dtype: str, asked: CollectivesOptions
) -> Iterator[dict[str, Any]]:
    """Yield a row for each size, or one with the reason why there is none."""
    kind = getattr(torch, TORCH_DTYPE_NAMES[dtype])
    about = {
        "ranks": ",".join(map(str, members.ranks)),
        "group_size": members.size,
        "nodes": members.nodes,
    }
    if reason := missing_operation(members, op, kind):
        yield {**about, "reason": f"{dist.get_backend(members.group)}: {reason}"}
        return
    for size in asked.sizes:
        whole = element_count(size, kind.itemsize, members.size)
        operation = OPERATIONS[op](members, whole, kind)
        wrong = _check(members, operation) if asked.check else None
        seconds = _time(members, operation, asked)
        mean = seconds[0]
        algbw = whole * kind.itemsize / mean
        yield {
            **about,
            "bytes": whole * kind.itemsize,
            "count": whole // members.size if operation.counts_share else whole,
            "iterations": len(seconds) - 1,
            "seconds": mean,
            "fastest_s": min(seconds[1:]),
            "slowest_s": max(seconds[1:]),
            "algbw": algbw,
            "busbw": algbw * (bus_factor(op, members.size) or 1.0),
            "wrong": wrong,
            "reason": "",
        }
        del operation


def _check(members: GroupMembership, operation: CollectiveOperation) -> int:
    """Number of wrong elements over all ranks. A collective call."""
    operation.fill()
    operation.call()
    wrong = torch.tensor([operation.wrong_elements()])
    dist.all_reduce(wrong, group=members.group)
    return int(wrong)


def _time(members: GroupMembership, operation: CollectiveOperation, asked: CollectivesOptions) -> list[float]:
    """Seconds of a call: the mean on the slowest rank, then each call on its slowest rank."""
    operation.clear()
    # all ranks make the same number of calls: it follows from a time that all of them have
    once = call_seconds(operation.call, members.device, members.group, 1)[0]
    more = min(asked.warmup - 1, int(asked.seconds / once))
    warm = call_seconds(operation.call, members.device, members.group, more)[0] if more else once
    return call_seconds(
        operation.call,
        members.device,
        members.group,
        max(1, min(asked.iterations, int(asked.seconds / warm))),
    )


def _result(asked: CollectivesOptions, rows: Rows) -> RankResult:
    """Rows of this rank, and columns, which are those of all ranks. A collective call."""
    of_ranks: list[Rows] = [[]] * dist.get_world_size()
    dist.all_gather_object(of_ranks, rows)
    delivery = RankResult(tables={"collective_times": rows} if rows else {})
    every = [row for of_rank in of_ranks for row in of_rank if row["dtype"] == asked.dtypes[0]]
    for op, group in itertools.product(asked.operations, asked.groups):
        name = busbw_column(op, group)
        found = [row for row in every if (row["op"], row["group"]) == (op, group)]
        reasons = [row["reason"] for row in found if row["reason"]]
        reasons += ["its result was wrong"] if any(row.get("wrong") for row in found) else []
        if reasons:
            delivery.absent[name] = reasons[0]
            continue
        largest = {row["ranks"]: row for row in sorted(found, key=lambda row: row["bytes"])}
        delivery.samples[name] = [min(row["busbw"] for row in largest.values())]
    return delivery
