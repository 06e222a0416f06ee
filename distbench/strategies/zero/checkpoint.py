"""Checkpoints of DeepSpeed's engine, and its full state by parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import (
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

from distbench.strategies.engine import TrainingState
from distbench.strategies.torch_engine.checkpoint import NO_FULL_STATE, refuse_quantized
from distbench.strategies.torch_engine.readback import copy_to_host
from distbench.strategies.zero import live_state
from distbench.workloads.weights import plain_name

_TAG = "checkpoint"
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "row_var", "col_var", "variance")


def save(engine: Any, folder: Path) -> None:
    """Write the engine's state in shards into *folder*.

    Raises:
        NotImplementedError: DeepSpeed can't load it, or it is untested.
    """
    if live_state.uses_mics(engine):
        raise NotImplementedError("checkpoints of MiCS, which DeepSpeed has removed, are not supported")
    refuse_quantized(engine.basic_optimizer, "which DeepSpeed (0.19.8) can save but not load")
    engine.save_checkpoint(str(folder), tag=_TAG)


def load(engine: Any, folder: Path) -> None:
    """Load what ``save`` wrote.

    DeepSpeed reads it by pickle (``torch.load`` without ``weights_only``), so *folder* must be one that
    distbench wrote.

    Raises:
        FileNotFoundError: it found no checkpoint, which it reports only as a warning.
    """
    loaded, _ = engine.load_checkpoint(str(folder), tag=_TAG)
    if loaded is None:
        raise FileNotFoundError(f"DeepSpeed found no checkpoint in {folder}")


HostCopier = Callable[[Iterable[tuple[str, torch.Tensor]]], dict[str, torch.Tensor]]
"""Function that iterates over named tensors, and keeps some of them on the CPU."""


def gather_optimizer(engine: Any, copy: HostCopier = copy_to_host) -> dict[str, dict[str, torch.Tensor]]:
    """Full optimizer state by the parameters' plain names; in a pipeline, that of this rank's stage.

    Collective call; *copy* decides where it is kept: by default on rank 0.

    Raises:
        NotImplementedError: it is quantized.
    """
    states = list(engine.basic_optimizer.state.values())
    if not any(name in state for state in states for name in _MOMENTS):
        return {}
    refuse_quantized(engine.basic_optimizer, NO_FULL_STATE)
    _link_states(engine)
    return {
        name: _parameter_state(engine, parameter, states[0], copy)
        for name, parameter in live_state.named_parameters(engine)
        if parameter.requires_grad
    }


def _parameter_state(
    engine: Any, parameter: torch.Tensor, example: dict[str, Any], copy: HostCopier
) -> dict[str, torch.Tensor]:
    """Full state of one parameter; *example* is that of any partition, for a parameter without state."""
    is_flat = bool(engine.zero_optimization_stage())
    own = example if is_flat else engine.basic_optimizer.state[live_state.stage0_masters(engine)[parameter]]
    held = (
        (name, safe_get_full_optimizer_state(parameter, name) if is_flat else own[name])
        for name in _MOMENTS
        if name in own
    )
    whole = ((name, live_state.unpartition(parameter, state.detach().float())) for name, state in held)
    return copy(whole) | ({"step": torch.tensor(float(own["step"]))} if "step" in own else {})


def scatter_state(engine: Any, updated: list[torch.Tensor], state: TrainingState) -> None:
    """Load *state*, which every rank has in full; *updated* are the tensors that the optimizer updates."""
    if engine.zero_optimization_stage():
        _allocate_states(engine.basic_optimizer, updated, state)
    _link_states(engine)
    put = _load_shard if engine.zero_optimization_stage() == 3 else _load_full
    for name, parameter in live_state.named_parameters(engine):
        put(engine, parameter, state.parameters[name], state.optimizer.get(name, {}))
    for name, buffer in live_state.underlying_module(engine).named_buffers():
        buffer.copy_(state.buffers[plain_name(name)])


def _link_states(engine: Any) -> None:
    """Link parameters to their moments, which stages 1 and 2 do only in an engine's first step."""
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def _allocate_states(optimizer: Any, updated: list[torch.Tensor], state: TrainingState) -> None:
    """Give a new *optimizer* of flat tensors the state that its first step creates, and the step count."""
    example = next(iter(state.optimizer.values()), {})
    for tensor in updated:
        kept = optimizer.state[tensor]
        for name in _MOMENTS:
            if name in example and name not in kept:
                kept[name] = torch.zeros_like(tensor)
        if "step" in example:
            kept["step"] = step_value(optimizer, example["step"], tensor.device)


def step_value(optimizer: Any, step: torch.Tensor, device: torch.device) -> int | torch.Tensor:
    """*step* in the type that *optimizer* uses: a plain number for DeepSpeed's own Adam."""
    return int(step) if "DeepSpeed" in type(optimizer).__name__ else step.clone().to(device)


def _load_full(
    engine: Any, parameter: torch.Tensor, value: torch.Tensor, moments: dict[str, torch.Tensor]
) -> None:
    value = live_state.local_partition(parameter, value)
    parameter.data.copy_(value)
    given = {
        name: live_state.local_partition(parameter, moments[name]) for name in _MOMENTS if name in moments
    }
    if hasattr(parameter, "_hp_mapping"):
        safe_set_full_fp32_param(parameter, value)
        for name, moment in given.items():
            safe_set_full_optimizer_state(parameter, moment, name)
    else:
        master = live_state.stage0_masters(engine).get(parameter, parameter)
        master.data.copy_(value)
        kept = engine.basic_optimizer.state[master]
        for name, moment in given.items():
            kept[name] = moment.to(master, copy=True)
        if "step" in moments:
            kept["step"] = step_value(engine.basic_optimizer, moments["step"], master.device)


def _load_shard(_engine: Any, parameter: Any, value: torch.Tensor, moments: dict[str, torch.Tensor]) -> None:
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.data.copy_(value)
    # the call for full tensors fails if the ranks don't divide them: it shards without padding (0.19.8)
    share = _shard_slicer(parameter)
    safe_set_local_fp32_param(parameter, share(value))
    for name in _MOMENTS:
        if name in moments:
            safe_set_local_optimizer_state(parameter, share(moments[name]), name)


def _shard_slicer(parameter: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Function that returns this rank's shard of a full tensor, padded with zeros."""
    size, rank = parameter.ds_tensor.numel(), dist.get_rank(group=live_state.shard_group(parameter))

    def share(whole: torch.Tensor) -> torch.Tensor:
        mine = whole.flatten()[rank * size : (rank + 1) * size]
        return torch.nn.functional.pad(mine, (0, size - mine.numel()))

    return share
