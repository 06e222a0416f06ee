"""Optimizers: create them with explicit hyper-parameters, combine them, and read them back."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import _default_to_fused_or_foreach

from distbench import optimizers
from distbench.core import lr_schedule
from distbench.core.case import OptimizerConfig
from distbench.optimizers import ALGORITHM_FLAGS
from distbench.strategies.torch_engine.readback import dtype_name
from distbench.workloads.shapes import hidden_matrices

_HYPER_PARAMETERS = (
    *("lr", "initial_lr", "betas", "eps", "momentum", "weight_decay"),
    # of Adafactor, of Muon, and of pytorch-optimizer's
    *("beta2_decay", "d", "ns_coefficients", "ns_steps", "adjust_lr_fn"),
    *("weight_decouple", "fixed_decay", "rectify", "grad_averaging", "adam", "adam_debias"),
)


_OBJECT_SETTINGS = ("block_size", "bf16_stochastic_round")
"""Hyper-parameters that torchao stores outside of the groups."""
_SHARED_SETTINGS = ("steps", "next_lr")


def make_optimizer(
    module: nn.Module, layers: Sequence[nn.Module], spec: OptimizerConfig
) -> torch.optim.Optimizer:
    """Optimizer of the parameters of *module*, with explicit hyper-parameters; *layers* are its layers.

    Raises:
        ValueError: it is an optimizer of matrices, and the layers have none.
    """
    rest = optimizers.entry_of(spec).companion
    if not rest:
        return _make_one(module.parameters(), spec)
    hidden = hidden_matrices(layers)
    mine = [parameter for parameter in module.parameters() if id(parameter) in hidden]
    if not mine:
        raise ValueError(
            f"optimizer.name = {spec.name} updates the matrices of a model's layers, but the layers of "
            "this model have none; use adamw, or set the layers in workload.user.layer_classes"
        )
    others = [parameter for parameter in module.parameters() if id(parameter) not in hidden]
    parts = [_make_one(mine, spec)]
    if others:
        parts.append(_make_one(others, dataclasses.replace(spec, name=rest)))
    return CombinedOptimizer(parts)


def _make_one(parameters: Iterable[torch.Tensor], spec: OptimizerConfig) -> torch.optim.Optimizer:
    kind = optimizers.entry_of(spec)
    cls = import_optimizer_class(kind)
    arguments = kind.hyper_parameters(spec) | kind.kernel_flags(spec)
    if kind.is_compiled:
        # a plain number would be compiled in; torchao makes it a tensor, which rounds it to fp32
        arguments["lr"] = torch.tensor(spec.lr, dtype=torch.float64)
    made: torch.optim.Optimizer = cls(parameters, **arguments)
    return made


def import_optimizer_class(kind: optimizers.OptimizerEntry) -> Any:
    """Class of the optimizer *kind*."""
    return getattr(importlib.import_module(kind.import_path.rpartition(".")[0]), kind.class_name)


def step_parameter(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    """Make *optimizer*, all of whose parameters are in one group, update only *parameter*.

    The update is that of an optimizer of this parameter alone; but state and hyper-parameters remain those of
    one optimizer, for schedulers, checkpoints and other readers.
    """
    (group,) = groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": [parameter]}]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups


def move_step_counters(optimizer: torch.optim.Optimizer) -> None:
    """Move the step counters of *optimizer* to its parameters' device, if its kernel needs them there.

    A fused kernel rejects those on the host (pytorch#124133).
    """
    for group in optimizer.param_groups:
        if not (group.get("fused") or group.get("capturable")):
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(step := state.get("step"), torch.Tensor):
                state["step"] = step.to(parameter.device)


def make_scheduler(optimizer: torch.optim.Optimizer, spec: OptimizerConfig) -> LambdaLR | None:
    """Torch's scheduler of the learning rate of *optimizer*; None if the rate never changes.

    To be stepped after each update that was taken, and only then.
    """
    if not lr_schedule.is_scheduled(spec):
        return None
    return LambdaLR(optimizer, lambda update: lr_schedule.lr_factor(spec, update))


def scheduled_updates(scheduler: LambdaLR | None) -> int:
    """Updates that *scheduler* has counted; 0 if there is none."""
    return scheduler.last_epoch if scheduler else 0


def restore_schedule(scheduler: LambdaLR | None, updates: int) -> None:
    """Continue *scheduler*, if there is one, after *updates* updates."""
    if scheduler is None:
        return
    scheduler.last_epoch = updates
    for group, factor in zip(scheduler.optimizer.param_groups, scheduler.lr_lambdas, strict=True):
        rate = group["initial_lr"] * factor(updates)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def describe_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class, kernel and hyper-parameters of a live optimizer.

    Raises:
        ValueError: its parameter groups differ, so there is no single answer.
    """
    if isinstance(optimizer, CombinedOptimizer):
        first, *others = map(describe_optimizer, optimizer.optimizers)
        # counted updates and scheduled rate are the same in both
        rest = {key: value for one in others for key, value in one.items() if key not in _SHARED_SETTINGS}
        return {**first, "rest": rest or None}
    names = (*_HYPER_PARAMETERS, "fused", "foreach", *ALGORITHM_FLAGS)
    groups = [{k: _as_number(group[k]) for k in names if k in group} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups):
        raise ValueError(f"parameter groups with different hyper-parameters: {groups}")
    settings = groups[0] | {
        name: getattr(optimizer, name) for name in _OBJECT_SETTINGS if hasattr(optimizer, name)
    }
    if "initial_lr" in settings:
        # a scheduler stores the initial rate there
        settings |= {"lr": settings.pop("initial_lr"), "next_lr": settings["lr"]}
    kernel = _kernel(optimizer, settings)
    variants = [name for name in ALGORITHM_FLAGS if settings.pop(name, None)]
    if "betas" in settings:
        # AdamW's weight decay; DeepSpeed and torchao store their choice outside of the groups
        own = settings.get("weight_decouple", "decoupled_weight_decay" in variants)
        decoupled = getattr(optimizer, "adam_w_mode", getattr(optimizer, "is_adamw", own))
        settings["decoupled_weight_decay"] = bool(decoupled)
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "kernel": kernel,
        **settings,
        "variants": [name for name in variants if name != "decoupled_weight_decay"],
        "steps": _step_count(optimizer),
    }


def _kernel(optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> str:
    """Implementation that *optimizer* steps with; its flags are removed from *settings*."""
    has_several = "foreach" in settings
    fused, foreach = settings.pop("fused", None), settings.pop("foreach", None)
    if not type(optimizer).__module__.startswith(("torch.", "torchao.", "pytorch_optimizer.")):
        # its own kernel, whatever torch's flags in its groups say
        return type(optimizer).__qualname__
    if has_several and fused is None and foreach is None:
        # neither was set, so torch chooses by device
        fused, foreach = _default_to_fused_or_foreach(optimized_tensors(optimizer), differentiable=False)
    return "fused" if fused else "foreach" if foreach else "loop"


def _as_number(setting: Any) -> Any:
    """*setting*, converted to a number if it is a tensor."""
    return setting.item() if isinstance(setting, torch.Tensor) else setting


def _step_count(optimizer: torch.optim.Optimizer) -> int | str | None:
    """Number of updates the optimizer has counted, all numbers if they differ; None if it counts none."""
    counts = sorted({int(state["step"]) for state in optimizer.state.values() if "step" in state})
    return counts[0] if len(counts) == 1 else "+".join(map(str, counts)) or None


def state_dtype(optimizer: torch.optim.Optimizer) -> str | None:
    """Dtype of the optimizer's moments; None if it keeps none."""
    return dtype_name(moment.dtype for moment in moments(optimizer)) or None


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors that the optimizer keeps for its parameters."""
    return [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step" and isinstance(value, torch.Tensor)
    ]


def optimized_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors that the optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class CombinedOptimizer(torch.optim.Optimizer):
    """Optimizers of different parameters as one, for schedulers, checkpoints and DeepSpeed.

    Parameter groups and state are shared with the parts, so a change here is one there.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(parts)
        self._counts = [len(part.param_groups) for part in parts]
        # the base class keeps the same group objects that are passed in
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every part."""
        loss = closure() if closure else None
        for part in self.optimizers:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share_state()

    def _share_state(self) -> None:
        """Share the current groups and state with the parts."""
        groups = iter(self.param_groups)
        for part, count in zip(self.optimizers, self._counts, strict=True):
            part.param_groups = [next(groups) for _ in range(count)]
            part.state = self.state
