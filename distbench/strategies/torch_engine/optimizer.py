"""torch's optimizers: made with every hyper-parameter, and read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import _default_to_fused_or_foreach

from distbench import schedule
from distbench.case import Optimizer
from distbench.strategies.torch_engine.reading import dtype_name

# options that change the algorithm
_VARIANTS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")


def make_optimizer(parameters: Iterable[torch.Tensor], spec: Optimizer) -> torch.optim.Optimizer:
    """Torch's optimizer with every hyper-parameter given."""
    shared: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    shared |= {kernel: spec.kernel == kernel for kernel in ("fused", "foreach")}
    if spec.name == "adamw":
        return torch.optim.AdamW(parameters, betas=spec.betas, eps=spec.eps, **shared)
    return torch.optim.SGD(parameters, momentum=spec.momentum, **shared)


def make_scheduler(optimizer: torch.optim.Optimizer, spec: Optimizer) -> LambdaLR | None:
    """Torch's scheduler of the learning rate of *optimizer*; None if it never changes.

    To be stepped after each update that was taken, and after no other.
    """
    if not schedule.is_scheduled(spec):
        return None
    return LambdaLR(optimizer, lambda update: schedule.factor(spec, update))


def scheduled_updates(scheduler: LambdaLR | None) -> int:
    """Updates that *scheduler* has counted; 0 if there is none."""
    return scheduler.last_epoch if scheduler else 0


def schedule_from(scheduler: LambdaLR | None, updates: int) -> None:
    """Let *scheduler*, if there is one, go on as after that many *updates*."""
    if scheduler is None:
        return
    scheduler.last_epoch = updates
    for group, factor in zip(scheduler.optimizer.param_groups, scheduler.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * factor(updates)


def describe_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class, kernel and hyper-parameters of a live optimizer.

    Raises:
        ValueError: its parameter groups differ, so there is no one answer.
    """
    names = ("lr", "initial_lr", "betas", "eps", "momentum", "weight_decay", "fused", "foreach", *_VARIANTS)
    groups = [{k: group[k] for k in names if k in group} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups):
        raise ValueError(f"parameter groups with different hyper-parameters: {groups}")
    settings = groups[0]
    if "initial_lr" in settings:
        # a scheduler keeps there what it multiplies
        settings |= {"lr": settings.pop("initial_lr"), "next_lr": settings["lr"]}
    kernel = _kernel(optimizer, settings.pop("fused", None), settings.pop("foreach", None))
    variants = [name for name in _VARIANTS if settings.pop(name, None)]
    if "betas" in settings:
        # AdamW's weight decay; DeepSpeed keeps its choice beside the groups
        decoupled = getattr(optimizer, "adam_w_mode", "decoupled_weight_decay" in variants)
        settings["decoupled_weight_decay"] = bool(decoupled)
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "kernel": kernel,
        **settings,
        "variants": [name for name in variants if name != "decoupled_weight_decay"],
        "steps": _steps(optimizer),
    }


def _kernel(optimizer: torch.optim.Optimizer, fused: bool | None, foreach: bool | None) -> str:
    if not type(optimizer).__module__.startswith("torch."):
        # its own kernel, whatever its groups say in torch's words
        return type(optimizer).__qualname__
    if fused is None and foreach is None:
        # neither was set, so torch chooses by device
        fused, foreach = _default_to_fused_or_foreach(optimized(optimizer), differentiable=False)
    return "fused" if fused else "foreach" if foreach else "loop"


def _steps(optimizer: torch.optim.Optimizer) -> int | str | None:
    """Updates that the optimizer has counted, all numbers if they differ; None if it counts none."""
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


def optimized(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors that the optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
