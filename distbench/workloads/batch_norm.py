"""Whose rows the statistics of BatchNorm are of, where several ranks have rows of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from distbench.core.errors import UnsupportedCase

if TYPE_CHECKING:
    from torch import nn

Statistics = Literal["per_rank", "sync"]
"""per_rank: of the rows that a rank has at a time, which is meant so. sync: of the rows of all ranks."""
ON_GPUS = "torch's SyncBatchNorm runs on GPUs only"


def device_problem(statistics: Statistics | None, device: str) -> str | None:
    """Why *statistics* can't be had on a kind of *device*; None: they can."""
    if statistics == "sync" and device == "cpu":
        return f"batch_norm: sync: {ON_GPUS}; use batch_norm: per_rank"
    return None


def convert_batch_norm(module: nn.Module, statistics: Statistics | None) -> nn.Module:
    """*module*, whose BatchNorm layers take those *statistics*."""
    from torch import nn

    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module) if statistics == "sync" else module
    return converted


def batch_norm_layers(module: nn.Module) -> dict[str, nn.Module]:
    """BatchNorm layers of *module* by name."""
    from torch import nn

    norms = nn.modules.batchnorm._BatchNorm
    return {name: part for name, part in module.named_modules() if isinstance(part, norms)}


def is_synchronised(layer: nn.Module) -> bool:
    """Whether a BatchNorm *layer* takes its statistics over ranks."""
    from torch import nn

    return isinstance(layer, nn.SyncBatchNorm)


def check_computable(module: nn.Module, compute: str) -> None:
    """See that a CPU can compute the BatchNorm layers of *module*, whose weights are in the dtype *compute*.

    Raises:
        UnsupportedCase: torch can't.
    """
    from distbench.workloads.weights import plain_name

    for name, layer in batch_norm_layers(module).items():
        if is_synchronised(layer):
            raise UnsupportedCase(
                f"{ON_GPUS}, and the model has one; use nn.BatchNorm, and batch_norm: per_rank"
            )
        if compute in ("bf16", "fp16") and layer.running_mean is not None:
            raise UnsupportedCase(
                f"{plain_name(name)} is a BatchNorm whose weights are in {compute} and whose running "
                "statistics are in fp32, which torch can't compute on CPUs; use precision: fp32"
            )
