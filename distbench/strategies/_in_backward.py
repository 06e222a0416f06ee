"""Optimizer in the backward pass: requirements and gradient memory. Imports no torch."""

from __future__ import annotations

import math

from distbench import optimizers
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.optimizers import CATALOG, OptimizerEntry
from distbench.strategies.requirements import transform_problem
from distbench.strategies.theory.pipeline_parallelism import stages_of
from distbench.workloads.base import workload_of

OPTION = "optimizer_in_backward"
LABEL = "in-backward"
UPDATE_TIMING = "when parameters are updated"


def optimizer_in_backward_problem(case: Case, *, on_dtensors: bool = False) -> str | None:
    """Reason why *case* can't update each parameter once its gradient is computed; None if it can.

    Args:
        on_dtensors: True if ranks have rows of its tensors.
    """
    clip, parts = case.optimizer.clip_grad_norm, case.batch.gradient_accumulation_steps
    kind, scale = optimizers.entry_of(case.optimizer), case.precision.loss_scale
    plain = f"or set {OPTION}: false"
    if clip is not None:
        return (
            f"optimizer.clip_grad_norm = {clip:g} needs the norm of all gradients before any update, "
            f"but {OPTION} frees each gradient after its update; remove clip_grad_norm, {plain}"
        )
    if parts > 1:
        return (
            f"batch.gradient_accumulation_steps = {parts}: {OPTION} updates in every backward pass, so it "
            f"can't accumulate gradients; use larger micro-batches, {plain}"
        )
    if scale is not None:
        return (
            f"precision.loss_scale = {scale}: {OPTION} does not support a loss scale, because an "
            "overflow is known only after all gradients exist, when parameters have already been "
            f"updated; use precision: bf16, {plain}"
        )
    if reason := _stepping_problem(kind):
        return (
            f"optimizer.name = {case.optimizer.name}: {OPTION} updates one parameter at a time, "
            f"{reason}; use {', '.join(_supported_optimizers(on_dtensors=on_dtensors))}, {plain}"
        )
    return transform_problem(case, OPTION)


def _stepping_problem(kind: OptimizerEntry) -> str:
    """Reason why the optimizer can't step one parameter at a time; empty: it can."""
    if kind.companion:
        return "but this optimizer combines two"
    if kind.package == "pytorch-optimizer":
        return "but this optimizer counts updates of all parameters together"
    return "" if kind.package == "torch" else "which is untested with this optimizer"


def _supported_optimizers(*, on_dtensors: bool) -> list[str]:
    able = (name for name, kind in CATALOG.items() if not _stepping_problem(kind))
    return [name for name in able if not (on_dtensors and CATALOG[name].dtensor_problem)]


def largest_tensor_gradient_bytes(case: Case) -> int | None:
    """Gradient bytes of the largest tensor of *case*; None: the workload does not report its size."""
    shapes = workload_of(case).tensor_shapes()
    return max(map(math.prod, shapes)) * DTYPE_BYTES[case.precision.master] if shapes else None


def largest_layer_gradient_bytes(case: Case, parameters: int) -> int | None:
    """Gradient bytes of the largest layer, or of the rest of the *parameters*; None: sizes are unknown."""
    stages = stages_of(case)
    if stages is None:
        return None
    return (
        max(*stages.layer_parameters, parameters - sum(stages.layer_parameters))
        * DTYPE_BYTES[case.precision.master]
    )


def with_gradient_bytes(states: dict[str, float], gradients: float | None) -> dict[str, float] | None:
    """*states* with at most this many bytes of *gradients* at once; None: the number is unknown."""
    return None if gradients is None else {**states, "gradients": gradients}
