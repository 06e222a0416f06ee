"""What was asked for is what ran: asserted on live objects, before anything is timed.

Tools of today start one process for two, run DDP where FSDP was asked for, feed ranks the same
data, and clip gradients by a hidden default, all with exit code 0.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from distbench.case import Case, Optimizer
from distbench.strategies.base import Engine, Strategy
from distbench.worker.feed import Feed
from distbench.workloads.base import Workload

_HYPER_PARAMETERS = {
    "adamw": ("lr", "betas", "eps", "weight_decay"),
    "sgd": ("lr", "momentum", "weight_decay"),
}

# far above rounding, which is the same on every rank or nearly so, and far below ranks that train apart
_SAME_NORM = 1e-3


class Mismatch(Exception):
    """What runs is not what was asked for; the message lists every difference."""


class Refused(Exception):
    """What was asked for can't be told of this model or engine; the message is the reason."""


def check_engine(strategy: Strategy, engine: Engine, case: Case) -> None:
    """Raise Mismatch unless the live engine and the process group are those asked for."""
    classes = [cls.__name__ for cls in type(engine.live).__mro__]
    if strategy.engine not in classes:
        raise Mismatch(f"engine: asked {strategy.engine!r}, found {classes[0]!r}")
    processes = strategy.processes(case.world_size)
    _require(
        {
            "processes": (processes, dist.get_world_size()),
            "WORLD_SIZE": (str(processes), os.environ.get("WORLD_SIZE")),
        }
    )


def check_distinct_data(feed: Feed, processes: int) -> None:
    """Raise Mismatch if two ranks would train on the same rows. A collective call."""
    prints: list[str | None] = [None] * processes
    dist.all_gather_object(prints, feed.fingerprint(0))
    twins = [rank for rank, seen in enumerate(prints) if prints.index(seen) != rank]
    if twins:
        raise Mismatch(
            f"data: rank {twins[0]} gets the same rows as rank {prints.index(prints[twins[0]])}; "
            "every rank must see its own part of the global batch"
        )


def check_effective(effective: dict[str, Any], case: Case, workload: Workload, strategy: Strategy) -> None:
    """Raise Mismatch unless what the engine really does is the work of *case*."""
    optimizer, kernel = strategy.optimizer(case)
    asked: dict[str, Any] = {
        "world_size": case.world_size,
        "global_batch_size": case.batch.global_batch_size,
        "optimizer.class": optimizer,
        "optimizer.kernel": kernel,
        "micro_batch_size": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        "clip_grad_norm": case.optimizer.clip_grad_norm,
        # a scale of 1 changes nothing
        "loss_scale": None if case.precision.loss_scale == 1 else case.precision.loss_scale,
        "dtypes.compute": case.precision.compute,
        "dtypes.reduce": case.precision.reduce,
        "dtypes.master": case.precision.master,
        "dtypes.optimizer_state": _state_dtype(case),
        "activation_checkpointing": case.activation_checkpointing,
    }
    asked |= {f"optimizer.{name}": getattr(case.optimizer, name) for name in hyper_parameters(case.optimizer)}
    if (parameters := workload.parameters()) is not None:
        asked["parameters"] = parameters
    if case.world_size == 1 and _look_up(effective, "dtypes.reduce") is None:
        # one device alone reduces nothing
        del asked["dtypes.reduce"]
    _require({key: (value, _look_up(effective, key)) for key, value in asked.items()})


def check_same_norm(norms: list[float], processes: int) -> None:
    """Raise Mismatch unless all ranks see the same gradients. A collective call.

    The norm of reduced gradients is one number; ranks that train apart have a norm each.
    """
    seen: list[list[float]] = [[]] * processes
    dist.all_gather_object(seen, norms)
    for step, of_ranks in enumerate(zip(*seen, strict=True)):
        if max(of_ranks) - min(of_ranks) > _SAME_NORM * max(of_ranks):
            raise Mismatch(
                f"gradients: ranks are not synchronised; their norms in check step {step} are {of_ranks}"
            )


def hyper_parameters(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the hyper-parameters that *optimizer*'s algorithm has."""
    return _HYPER_PARAMETERS[optimizer.name]


def _state_dtype(case: Case) -> str | None:
    """SGD without momentum keeps no state."""
    keeps_state = case.optimizer.name == "adamw" or case.optimizer.momentum != 0
    return case.precision.optimizer_state if keeps_state else None


def _look_up(effective: dict[str, Any], key: str) -> Any:
    value: Any = effective
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return "nothing told"
        value = value[part]
    return tuple(value) if isinstance(value, list) else value


def _require(pairs: dict[str, tuple[Any, Any]]) -> None:
    wrong = [f"{key}: asked {a!r}, found {f!r}" for key, (a, f) in pairs.items() if a != f]
    if wrong:
        raise Mismatch("; ".join(wrong))
