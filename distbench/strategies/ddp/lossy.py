"""PowerSGD and post-local SGD: limits, labels, declared differences and traffic. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from distbench import optimizers
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import ExpectedCollective, IntendedDifference
from distbench.strategies.requirements import unused_option_problem
from distbench.workloads.base import workload_of

if TYPE_CHECKING:
    from distbench.strategies.ddp import DistributedDataParallel

_POWERSGD, _LOCAL_SGD = "PowerSGD", "post-local SGD"


def powersgd_difference(rank: int, start: int) -> IntendedDifference:
    """Declared difference of PowerSGD."""
    return IntendedDifference(
        f"{_POWERSGD} approximates each gradient by a product of rank {rank} and adds the error to the "
        "next gradients",
        start,
    )


def local_sgd_difference(period: int, start: int) -> IntendedDifference:
    """Declared difference of post-local SGD."""
    every = "every step" if period == 1 else f"every {period} steps"
    why = f"ranks update their own replicas, which are averaged {every} ({_LOCAL_SGD})"
    # for equal replicas, the mean of the gradients is the gradient
    return IntendedDifference(why, start, changes_gradients=False)


def label_parts(ddp: DistributedDataParallel) -> list[str]:
    """Parts of the label of *ddp*; a start is left out if it is the default."""
    if ddp.powersgd_rank:
        options = {
            f"powersgd{ddp.powersgd_rank}": True,
            f"start{ddp.powersgd_start}": ddp.powersgd_start != type(ddp).powersgd_start,
            f"rate{ddp.min_compression_rate:g}": ddp.min_compression_rate != type(ddp).min_compression_rate,
        }
    else:
        options = {
            f"local{ddp.local_sgd_period}": bool(ddp.local_sgd_period),
            f"start{ddp.local_sgd_start}": ddp.local_sgd_start != type(ddp).local_sgd_start,
        }
    return [word for word, is_said in options.items() if is_said]


def lossy_problem(ddp: DistributedDataParallel, case: Case) -> str | None:
    """Reason why *case* can't be trained with these options; None if it can."""
    if ddp.powersgd_rank and ddp.local_sgd_period:
        return (
            f"powersgd_rank = {ddp.powersgd_rank} and local_sgd_period = {ddp.local_sgd_period}: torch has "
            "no hook that does both; use only one of them"
        )
    powersgd = ddp.powersgd_rank, "powersgd_rank"
    needs = {
        "powersgd_start": powersgd,
        "min_compression_rate": powersgd,
        "local_sgd_start": (ddp.local_sgd_period, "local_sgd_period"),
    }
    if reason := unused_option_problem(ddp, type(ddp)(), needs):
        return reason
    return _lossy_case_problem(ddp, case) if ddp.intended_difference else None


def _lossy_case_problem(ddp: DistributedDataParallel, case: Case) -> str | None:
    what = _POWERSGD if ddp.powersgd_rank else _LOCAL_SGD
    kind, precision = optimizers.entry_of(case.optimizer), case.precision
    if case.world_size == 1:
        return f"{what}: a single rank has nothing to reduce; use a world size of at least 2"
    if ddp.sharded_optimizer:
        return f"{what} is not supported with sharded_optimizer; use sharded_optimizer: false"
    if precision.master not in ("fp32", "fp64") or precision.reduce != precision.master:
        return (
            f"{what} supports only gradients in fp32 or fp64, reduced in that dtype: precision.master = "
            f"{precision.master}, precision.reduce = {precision.reduce}"
        )
    if precision.loss_scale is not None:
        return (
            f"precision.loss_scale = {precision.loss_scale}: {what} does not support a loss scale, "
            "because other ranks would not skip a step that overflows on one rank; use precision: bf16"
        )
    if kind.companion or kind.is_compiled:
        return f"optimizer.name = {case.optimizer.name} is not supported with {what}"
    return None


def required_settings(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Settings of it that ``Engine.effective_settings`` must report."""
    if ddp.powersgd_rank:
        return {
            "communication_hook": "powerSGD_hook",
            "powersgd.rank": ddp.powersgd_rank,
            "powersgd.start": ddp.powersgd_start,
            "powersgd.min_compression_rate": ddp.min_compression_rate,
        }
    return {
        "communication_hook": "post_localSGD_hook",
        "local_sgd.period": ddp.local_sgd_period,
        "local_sgd.start": ddp.local_sgd_start,
        # the first step of averaging: at a different step some gradients would never be shared
        "local_sgd.warmup_steps": ddp.local_sgd_start,
    }


def lossy_traffic(
    ddp: DistributedDataParallel, case: Case, parameters: int
) -> list[ExpectedCollective] | None:
    """Collectives of a rank in a step after the start.

    For post-local SGD, the mean over steps (Lin et al. 2020, arXiv:1808.07217): every parameter once in each
    period. None: the workload does not report the shapes of its tensors.
    """
    if ddp.local_sgd_period:
        averaged = parameters * DTYPE_BYTES[case.precision.master] / ddp.local_sgd_period
        # torch averages all tensors as one
        often = 1 / ddp.local_sgd_period
        return [ExpectedCollective("all_reduce", averaged, "dp_replicate", often, often)]
    shapes = workload_of(case).tensor_shapes()
    if shapes is None:
        return None
    # the number of calls is that of torch's hook for each bucket, which depends on the tensors inside it
    numbers = powersgd_elements(shapes, ddp.powersgd_rank, ddp.min_compression_rate)
    reduced = float(numbers * DTYPE_BYTES[case.precision.reduce])
    return [ExpectedCollective("all_reduce", reduced, "dp_replicate")]


def powersgd_elements(shapes: Iterable[tuple[int, ...]], rank: int, min_compression_rate: float) -> int:
    """Number of elements that PowerSGD reduces in a step for tensors of *shapes*.

    Vogels et al. 2019 (arXiv:1905.13727, algorithm 1): for an n x m matrix, P (n x r) and Q (m x r), if the
    matrix is more than *min_compression_rate* times larger, as torch decides; any other tensor in full. The
    rows of a tensor are its first dimension.
    """
    return sum(
        _powersgd_elements_of(shape[0], math.prod(shape[1:]), rank, min_compression_rate) for shape in shapes
    )


def _powersgd_elements_of(rows: int, columns: int, rank: int, min_compression_rate: float) -> int:
    products = (rows + columns) * min(rows, columns, rank)
    return products if products * min_compression_rate < rows * columns else rows * columns


def are_replicas_equal(ddp: DistributedDataParallel, updates: int) -> bool:
    """True if post-local SGD should have the same parameters on all ranks after *updates* updates.

    Before it starts, gradients are reduced; its first update is followed by the first average, as torch's
    ``PeriodicModelAverager`` counts.
    """
    local = updates - ddp.local_sgd_start
    return local <= 0 or (local - 1) % ddp.local_sgd_period == 0


def checkpoint_problem(ddp: DistributedDataParallel) -> str:
    """Reason why such a training has no checkpoint."""
    if ddp.powersgd_rank:
        return (
            "PowerSGD can't resume exactly: its error buffers belong to DDP's buckets, and DDP "
            "reorders its buckets after the first step of each process"
        )
    return (
        "between two averages each rank has its own parameters and optimizer state, but a checkpoint stores "
        "only one replica"
    )
