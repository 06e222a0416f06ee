"""Tensors that DeepSpeed's optimizer updates: master weights, wherever a stage keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
from torch import nn

from distbench.strategies.torch_engine import optimizer
from distbench.strategies.zero import rank_partitions


def updated_tensors(engine: Any) -> list[torch.Tensor]:
    """Tensors that the optimizer updates; stage 3 passes them to it only for the step."""
    if engine.zero_optimization_stage() == 3:
        return list(engine.optimizer.fp32_partitioned_groups_flat)
    return optimizer.optimized_tensors(engine.basic_optimizer)


def stage0_masters(engine: Any) -> dict[torch.Tensor, torch.Tensor]:
    """Master weight of each parameter of stage 0, which has no partitions.

    Raises:
        NotImplementedError: DeepSpeed keeps the master weights in one flat tensor of all parameters.
    """
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_groups_flat"):
        raise NotImplementedError("DeepSpeed's stage 0 in 16 bits keeps the state of its own kernel flat")
    if hasattr(wrapper, "fp32_groups"):
        # FP16_UnfusedOptimizer, in bf16 too
        groups = zip(wrapper.fp16_groups, wrapper.fp32_groups, strict=True)
        return {low: high for lows, highs in groups for low, high in zip(lows, highs, strict=True)}
    return {parameter: parameter for parameter in engine.module.parameters()}


def unlinked_masters(engine: Any) -> dict[torch.Tensor, torch.Tensor]:
    """Master weight of each parameter in stage 0, which DeepSpeed doesn't link."""
    wrapper = engine.optimizer
    if engine.zero_optimization_stage():
        return {}
    if not hasattr(wrapper, "fp32_groups_flat"):
        return stage0_masters(engine)
    groups = zip(wrapper.fp32_groups_flat, wrapper.fp16_groups, strict=True)
    unflat = torch._utils._unflatten_dense_tensors
    return {low: high for flat, lows in groups for low, high in zip(lows, unflat(flat, lows), strict=True)}


def full_master(parameter: nn.Parameter, separate: Mapping[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Full tensor that is updated for *parameter*: from *separate*, or from DeepSpeed itself.

    Collective call if it is sharded or split.
    """
    master = separate.get(parameter)
    if master is None:
        master = deepspeed.utils.safe_get_full_fp32_param(parameter)
    if master is None:
        master = _gather_parameter(parameter)
    return rank_partitions.unpartition(parameter, master.float())


def _gather_parameter(parameter: nn.Parameter) -> torch.Tensor:
    """Full copy of a parameter without a master weight, such as a frozen one of stage 3."""
    if not hasattr(parameter, "ds_status"):
        return parameter.detach()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def undo_dry_run_step(engine: Any) -> None:
    """Undo the step without gradients by which DeepSpeed allocates the optimizer's moments.

    In stage 0 with 16-bit parameters that step stays counted, so that Adam's bias correction is one step
    ahead of other strategies', and it decays the master weights one extra time (found with 0.19.8: the first
    update is 0.7 times what it should be, and with a decay of 0.1 at a rate of 0.001 the master weights start
    0.01% smaller).
    """
    for parameter, master in unlinked_masters(engine).items():
        master.data.copy_(parameter.data)
    for state in engine.basic_optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].zero_()
        elif "step" in state:
            # DeepSpeed's own Adam counts in a plain number
            state["step"] = 0
