"""BatchNorm statistics where ranks have rows of their own: per rank, or over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from distbench.core.errors import UnsupportedCase

if TYPE_CHECKING:
    from torch import nn

Statistics = Literal["per_rank", "sync"]
"""per_rank: over the rows that a rank has at a time, by intention. sync: over the rows of all ranks."""
ON_GPUS = "torch's SyncBatchNorm runs on GPUs only"


def device_problem(statistics: Statistics | None, device: str) -> str | None:
    """Reason why *statistics* can't be computed on *device*; None: they can."""
    if statistics == "sync" and device == "cpu":
        return f"batch_norm: sync: {ON_GPUS}; use batch_norm: per_rank"
    return None


def convert_batch_norm(module: nn.Module, statistics: Statistics | None) -> nn.Module:
    """Convert the BatchNorm layers of *module* to those *statistics*; return the module."""
    from torch import nn

    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module) if statistics == "sync" else module
    return converted


def batch_norm_layers(module: nn.Module) -> dict[str, nn.Module]:
    """BatchNorm layers of *module* by name."""
    from torch import nn

    norms = nn.modules.batchnorm._BatchNorm
    return {name: part for name, part in module.named_modules() if isinstance(part, norms)}


def is_synchronised(layer: nn.Module) -> bool:
    """True if a BatchNorm *layer* takes its statistics over ranks."""
    from torch import nn

    return isinstance(layer, nn.SyncBatchNorm)


def check_computable(module: nn.Module, compute: str) -> None:
    """Check that a CPU can compute the BatchNorm layers of *module* with weights in the dtype *compute*.

    Raises:
        UnsupportedCase: torch can't.
    """
    from distbench.workloads.weights import plain_name

    for name, layer in batch_norm_layers(module).items():
        if is_synchronised(layer):
            raise UnsupportedCase(
                f"{ON_GPUS}, and the model contains one; use nn.BatchNorm, and batch_norm: per_rank"
            )
        if compute in ("bf16", "fp16") and layer.running_mean is not None:
            raise UnsupportedCase(
                f"{plain_name(name)} is a BatchNorm with weights in {compute} and running statistics in "
                "fp32, which torch does not support on CPUs; use precision: fp32"
            )
