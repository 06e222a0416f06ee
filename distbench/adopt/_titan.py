"""Shared parts of torchtitan's configurations."""

from __future__ import annotations

from typing import Any

from distbench import optimizers
from distbench.adopt.base import ExportedCase
from distbench.core import lr_schedule
from distbench.core.case import TORCH_DTYPE_NAMES, OptimizerConfig

EACH_MICRO_BATCH = "torchtitan reduces after every micro-batch, the case once per step"
WHOLE_BLOCKS = "torchtitan recomputes whole blocks; the case stopped at the last tensor that is needed"
SAME_TOKENS = (
    "torchtitan sums the loss over tokens and divides by their number in the global batch: equal to the case "
    "if every sample has the same number of tokens."
)
_DTYPES = ("fp32", "fp32", "fp32"), ("bf16", "fp32", "fp32")
"""Supported dtypes for compute, reduction and master weights."""


def problems(measured: ExportedCase) -> dict[str, object]:
    """Reason why no version can express a case -> whether it applies."""
    case, fsdp = measured.case, measured.fsdp
    dtypes = (case.precision.compute, case.precision.reduce, case.precision.master)
    return {
        "torchtitan trains only on accelerators; the case was measured on CPUs": case.device == "cpu",
        "torchtitan supports only FSDP2": fsdp and fsdp.version != 2,
        f"torchtitan has FSDP2, DDP, tensor, pipeline and context parallelism, not {case.strategy.name}": (
            not (
                fsdp
                or measured.ddp
                or measured.tensor_parallelism
                or measured.pipeline
                or measured.context_parallelism
            )
        ),
        f"torchtitan supports Adam and AdamW, not {case.optimizer.name}": (
            case.optimizer.name not in ("adamw", "adam")
        ),
        "torchtitan computes in fp32 or bf16, reduces in fp32 and keeps fp32 weights; the case has "
        "compute {}, reduce {}, master {}".format(*dtypes): dtypes not in _DTYPES,
        EACH_MICRO_BATCH: fsdp and not fsdp.reduce_each_micro_batch,
        f"torchtitan compiles in torch's default mode, not in {case.compile}": (
            case.compile not in ("none", "default")
        ),
        "torchtitan has no inverse-square-root schedule of the learning rate": (
            case.optimizer.schedule == "inverse_sqrt"
        ),
    }


def differences(measured: ExportedCase) -> dict[str, object]:
    """Setting that no version can express -> whether it applies to the case."""
    half = "torchtitan's selective checkpointing keeps every second matrix product; the case kept all"
    return {half: measured.case.activation_checkpointing == "selective"}


def training(measured: ExportedCase, max_norm: float) -> dict[str, Any]:
    """Section ``training``, with gradients clipped at *max_norm*."""
    case, batch = measured.case, measured.case.batch
    return {
        # the step at which the decay of the learning rate ends
        **({"steps": case.optimizer.total_steps} if case.optimizer.total_steps else {}),
        "local_batch_size": batch.micro_batch_size,
        "global_batch_size": batch.global_batch_size,
        "max_norm": max_norm,
        "dtype": TORCH_DTYPE_NAMES[case.precision.master],
        "mixed_precision_param": TORCH_DTYPE_NAMES[case.precision.compute],
        "mixed_precision_reduce": TORCH_DTYPE_NAMES[case.precision.reduce],
        "enable_cpu_offload": bool(measured.fsdp and measured.fsdp.cpu_offload),
    }


def clipping(spec: OptimizerConfig) -> float:
    """Norm at which gradients are clipped; torchtitan always clips, and with infinity only measures."""
    return float("inf") if spec.clip_grad_norm is None else spec.clip_grad_norm


def implementation(spec: OptimizerConfig) -> str:
    """Kernel of the optimizer."""
    return {"loop": "for-loop"}.get(spec.kernel, spec.kernel)


def optimizer_name(spec: OptimizerConfig) -> str:
    """Class of the optimizer."""
    return optimizers.entry_of(spec).class_name


def scheduler(spec: OptimizerConfig) -> dict[str, Any]:
    """Schedule by torchtitan's formula: update k has (k + 1) / warmup_steps; decay ends at training.steps."""
    if spec.schedule not in lr_schedule.FINITE_SCHEDULES or not spec.total_steps:
        # a decay that ends where it starts
        return {"warmup_steps": spec.warmup_steps, "min_lr_factor": 1.0}
    return {
        "warmup_steps": spec.warmup_steps,
        "decay_ratio": 1 - lr_schedule.decay_start(spec) / spec.total_steps,
        "decay_type": "cosine" if spec.schedule == "cosine" else "linear",
        "min_lr_factor": spec.final_lr_fraction,
    }
