"""Parameters, master weights, gradients and mesh of a live DeepSpeed engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.checkpoint import constants
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups, link_hp_params, safe_get_full_grad
from torch import nn

from distbench.strategies.torch_engine import optimizer, readback
from distbench.workloads.weights import plain_name


def underlying_module(engine: Any) -> nn.Module:
    """Module of *engine* with the model's own names; in a pipeline, this rank's stage."""
    module: nn.Module = engine.module
    if isinstance(module, PipelineModule):
        # the layer that distbench builds; DeepSpeed's names begin with the number of a layer
        (module,) = module.forward_funcs
    return module


def named_parameters(engine: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Plain names and parameters of *engine*."""
    for name, parameter in underlying_module(engine).named_parameters():
        yield plain_name(name), parameter


# older releases of DeepSpeed do not mark split parameters
_AUTOTP_ATTRIBUTE = getattr(constants, "DS_AUTOTP_UC_META", "")


def partition_dim(parameter: torch.Tensor) -> int | None:
    """Dimension along which *parameter* is split; None: every rank has all of it."""
    found: int | None = getattr(parameter, _AUTOTP_ATTRIBUTE, {}).get("partition_dim")
    return found


def unpartition(parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """Full tensor of *piece*, which is split like *parameter*; a collective call if it is split."""
    cut = partition_dim(parameter)
    if cut is None:
        return piece
    pieces = [
        torch.empty_like(piece, memory_format=torch.contiguous_format) for _ in range(_tp_group().size())
    ]
    dist.all_gather(pieces, piece.contiguous(), group=_tp_group())
    return torch.cat(pieces, cut)


def local_partition(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece of the full *tensor*, split like *parameter*."""
    cut = partition_dim(parameter)
    if cut is None:
        return tensor
    return tensor.chunk(_tp_group().size(), cut)[_tp_group().rank()].contiguous()


def full_elements(parameter: Any) -> int:
    """Elements of *parameter* before it was split, by AutoTP or by stage 3."""
    cut = 1 if partition_dim(parameter) is None else _tp_group().size()
    return int(getattr(parameter, "ds_numel", parameter.numel())) * cut


def uses_mics(engine: Any) -> bool:
    """True if stage 3 shards over groups of ranks (MiCS), each of which has a replica."""
    return hasattr(next(engine.module.parameters()), "comm")


def shard_group(parameter: Any) -> dist.ProcessGroup:
    """Ranks over which stage 3 shards *parameter*: all, or those of a group of MiCS."""
    groups = getattr(parameter, "comm", None)
    found: dist.ProcessGroup = groups.param_shard_group if groups else parameter.ds_process_group
    return found


def data_parallel_size(engine: Any) -> int:
    """Data-parallel size of *engine*: number of ranks with different samples."""
    return int(dist.get_world_size(group=engine.data_parallel_group))


def mesh_sizes(engine: Any) -> dict[str, int]:
    """Number of ranks of *engine* in each dimension of its device mesh."""
    sizes = {"dp_shard" if engine.zero_optimization_stage() else "dp_replicate": data_parallel_size(engine)}
    if isinstance(engine.module, PipelineModule):
        return {"pp": engine.grid.get_pipe_parallel_group().size(), **sizes}
    return {**sizes, "tp": _tp_group().size()} if engine.autotp_size() > 1 else sizes


def _tp_group() -> dist.ProcessGroup:
    found: dist.ProcessGroup = groups.get_tensor_model_parallel_group()
    return found


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
    return unpartition(parameter, master.float())


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


def link_dealt_parameters(engine: Any) -> None:
    """Link parameters to their masters in the order in which they were dealt out to partitions.

    With ``round_robin_gradients`` DeepSpeed links them in the order of the model, so that its functions for
    full gradients and states read those of other parameters, or fail (found with 0.19.8).
    """
    optimizer = engine.optimizer
    if not getattr(optimizer, "round_robin_gradients", False):
        return
    for number, dealt in enumerate(optimizer.round_robin_bit16_groups):
        group = optimizer.real_dp_process_group[number]
        size = optimizer.bit16_groups_flat[number].numel() // dist.get_world_size(group=group)
        link_hp_params(
            lp_param_list=dealt,
            flat_hp_partition=optimizer.single_partition_of_fp32_groups[number],
            gradient_dict=optimizer.averaged_gradients,
            offload_gradient_dict=optimizer.offload_gradient_dict,
            use_offload=optimizer.cpu_offload,
            param_group_index=number,
            partition_start=dist.get_rank(group=group) * size,
            partition_size=size,
            dp_group=group,
        )
    # of the links before
    optimizer._hp_optimizer_states_linked = False


def loss_scale(engine: Any) -> float:
    """Factor by which the live engine divides gradients before an update; 1 if it has none."""
    return float(getattr(engine.optimizer, "loss_scale", 1.0))


def describe_scale(engine: Any) -> dict[str, float | str | None]:
    """Loss scale of the live engine, as ``effective`` reports it."""
    # of stages 1 to 3, and of stage 0
    scaler: Any = getattr(engine.optimizer, "loss_scaler", None)
    config: Any = getattr(engine.optimizer, "loss_scale_config", None)
    if getattr(scaler, "dynamic", False) or getattr(config, "dynamic_loss_scale", False):
        window = scaler.scale_window if scaler is not None else config.scale_window
        return {"loss_scale": "dynamic", "loss_scale_window": int(window)}
    return {"loss_scale": readback.effective_scale(loss_scale(engine))}


def scale_loss(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    """*loss* as ``engine.backward`` needs it, so that the gradients contain the loss scale.

    DeepSpeed itself multiplies by the scale only for the optimizers of stages 1 to 3. Those of stage 0 in 16
    bits still divide, so that without this function the update, and the norm for clipping, are too small by
    the scale (found with 0.19.8).
    """
    scale = loss_scale(engine)
    return loss if scale == 1 or hasattr(engine.optimizer, "scale_if_loss") else loss * scale


def full_gradients(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain name and full gradient of each parameter, on its device, with the loss scale in it.

    Collective call. At most one is gathered at a time, unless the caller keeps them.
    """
    for name, parameter in named_parameters(engine):
        if (gradient := safe_get_full_grad(parameter)) is not None:
            yield name, unpartition(parameter, gradient.detach())


def unscale(engine: Any, gradient: torch.Tensor) -> torch.Tensor:
    """*gradient* without the loss scale; not in 16 bits, in which a small one would be 0."""
    scale = loss_scale(engine)
    return gradient.float() if scale == 1 else gradient.float() / scale


def gradient_dtype(engine: Any) -> str:
    """Dtype in which the live engine accumulates gradients; it has freed the tensors themselves."""
    # stages 1 to 3 store it, the optimizer of bf16 with fp32 gradients under another name; in stage 0
    # autograd accumulates, in the dtype of the parameters
    for name in ("gradient_accumulation_dtype", "grad_acc_dtype"):
        if accumulates_in := getattr(engine.optimizer, name, None):
            return readback.dtype_name([accumulates_in])
    return readback.dtype_name(parameter.dtype for parameter in engine.module.parameters())
