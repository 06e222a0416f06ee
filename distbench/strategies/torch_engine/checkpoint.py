"""Checkpoints of plain torch: ``torch.distributed.checkpoint`` (DCP), for any module and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from distbench.strategies.engine import TrainingState
from distbench.workloads.weights import plain_name

ToDistributed = Callable[[str, torch.Tensor], torch.Tensor]

NO_FULL_STATE = "which other strategies can't load"
"""Reason why a quantized optimizer has no full state."""
_NONE: Mapping[str, str] = MappingProxyType({})
_UNNEEDED_STATES = ("weight_norm", "adam_norm", "trust_ratio")
"""LAMB's diagnostic values; each step recomputes them."""


def save(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    updates: int,
    to_distributed: ToDistributed = lambda _name, tensor: tensor,
    tied: Mapping[str, str] = _NONE,
) -> None:
    """Write *module*, *optimizer* and the *updates* of its schedule in shards into *folder*.

    Everything is stored under the model's own names, so that ranks of any other mesh find their parts in it.

    Args:
        to_distributed: Function that returns the tensor of a parameter, by its name, as the distributed
            tensor whose shard it is.
        tied: Copies that stages have of tied weights -> the weight that the full model has.
    """
    model, moments = get_state_dict(module, optimizer)
    own = {name: state for name, state in _by_plain_name(moments).items() if name not in tied}
    dcp.save(_checkpoint_tree(model, own, moments, updates, to_distributed), checkpoint_id=folder)


def load(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    to_distributed: ToDistributed = lambda _name, tensor: tensor,
    tied: Mapping[str, str] = _NONE,
) -> int:
    """Load what ``save`` wrote, in this mesh or another; return the updates of the schedule.

    DCP reads its metadata and hyper-parameters by pickle, so *folder* must be one that distbench wrote.
    """
    model, moments = get_state_dict(module, optimizer)
    own = _by_plain_name(moments)
    # a rank with both then takes the copy's value from the original
    wanted = {tied.get(name, name): state for name, state in own.items() if tied.get(name) not in own}
    state = _checkpoint_tree(model, wanted, moments, 0, to_distributed)
    # into the memory of the existing tensors
    dcp.load(state, checkpoint_id=folder)
    for copy, plain in tied.items():
        if copy in own and plain in own:
            for key, value in own[copy].items():
                value.copy_(own[plain][key])
    for group, loaded in zip(moments["param_groups"], state["groups"].values(), strict=True):
        group |= loaded
    set_state_dict(module, optimizer, model_state_dict=model, optim_state_dict=moments)
    return int(state["updates"])


def _by_plain_name(moments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {plain_name(name): _needed_states(state) for name, state in moments.get("state", {}).items()}


def _checkpoint_tree(
    model: Mapping[str, Any],
    moments: Mapping[str, dict[str, Any]],
    optimizer: Mapping[str, Any],
    updates: int,
    to_distributed: ToDistributed,
) -> dict[str, Any]:
    """State of a checkpoint: every tensor through *to_distributed*, and hyper-parameters by group.

    The parameters of each group are left out, since another mesh can't use them: a stage has some of them.
    """
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer["param_groups"]]
    return {
        "model": {plain_name(name): to_distributed(name, value) for name, value in model.items()},
        "optimizer": {
            name: {key: to_distributed(name, value) for key, value in state.items()}
            for name, state in moments.items()
        },
        "groups": {str(number): group for number, group in enumerate(groups)},
        "updates": updates,
    }


def gather_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, full: bool = True
) -> dict[str, dict[str, torch.Tensor]]:
    """Optimizer state on the CPU by the plain names of the parameters: on rank 0 the *full* state.

    If *full* is false, each rank gets its own state as it is, for ranks with different modules.

    Raises:
        NotImplementedError: it is quantized.
    """
    on_gpu = full and any(parameter.is_cuda for parameter in module.parameters())
    # offload from a CPU to itself returns FSDP1's moments as zeros or garbage, without an error (torch 2.13)
    options = StateDictOptions(full_state_dict=full, cpu_offload=on_gpu)
    refuse_quantized(optimizer, NO_FULL_STATE)
    state: Any = get_optimizer_state_dict(module, optimizer, options=options).get("state", {})
    keep = host_copy if full else _needed_states
    return {plain_name(name): keep(moments) for name, moments in state.items()}


def host_copy(moments: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies in host memory of the states of one parameter that the next step needs."""
    return {key: value.to("cpu", copy=True) for key, value in _needed_states(moments).items()}


def _needed_states(moments: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in moments.items() if key not in _UNNEEDED_STATES}


def refuse_quantized(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Raise NotImplementedError, with the reason *why*, if *optimizer* stores codes and scales.

    Judged by its class, not its state: ranks of a pipeline have different tensors, and small ones have none.
    """
    if type(optimizer).__module__.startswith("torchao."):
        raise NotImplementedError(
            f"{type(optimizer).__name__} stores quantized state (codes and scales), {why}"
        )


def scatter_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
    """Load the parameters, buffers and optimizer state of *state*, which every rank has."""
    whole = StateDictOptions(full_state_dict=True, strict=False)
    # of tied parameters the state has the first name only
    known = [name for name in get_model_state_dict(module) if plain_name(name) in state.parameters]
    parameters: Any = {name: state.parameters[plain_name(name)] for name in known}
    set_model_state_dict(module, parameters, options=whole)
    for name, buffer in module.named_buffers():
        buffer.copy_(state.buffers[plain_name(name)])
    if state.optimizer:
        fresh: Any = get_optimizer_state_dict(module, optimizer)
        groups = fresh["param_groups"]
        names = [name for group in groups for name in group["params"] if plain_name(name) in state.optimizer]
        moments = {name: state.optimizer[plain_name(name)] for name in names}
        spread_out: Any = {"state": moments, "param_groups": groups}
        set_optimizer_state_dict(
            module, optimizer, spread_out, options=StateDictOptions(full_state_dict=True)
        )
