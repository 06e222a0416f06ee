"""Describe a script's training as a case, with its live settings, from what its objects and steps tell."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecision
from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedV1

from distbench.core.bounds import Bound
from distbench.core.case import (
    NO_OPTIMIZER,
    Batch,
    Case,
    CompileMode,
    ObservedOptimizer,
    OptimizerConfig,
    PluginChoice,
    PrecisionConfig,
)
from distbench.core.dtypes import Dtype
from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.optimizers import CATALOG
from distbench.strategies.torch_engine.layer_sharding import compute_dtype, reduce_dtype
from distbench.strategies.torch_engine.optimizer import describe_optimizer
from distbench.strategies.torch_engine.readback import dtype_name, parameter_counts
from distbench.worker.scripts.live_objects import LiveTraining, elements

SCRIPT = "script"
"""Label of the case, and name of the workload and the data that a script has of its own."""


@dataclass(frozen=True)
class ObservedSteps:
    """Observations of the steps of a rank."""

    samples: float
    """Samples of the rank in a step; 0: unknown."""
    accumulated_passes: float
    """Backward passes before an update; 0: unknown."""
    autocast: torch.dtype | None
    """Dtype of autocast in the forward pass; None: it was off."""
    skips: bool
    """True if a loss scaler may skip steps."""
    clipping: float | None = None
    """Norm to which gradients are clipped; None: they are not."""


def script_case(live: LiveTraining, observed: ObservedSteps, argv: list[str]) -> Case:
    """The training of this process as a case; its seed is 0, as the draws of a script are its own."""
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    name, options = live.strategy()
    accumulated = max(1, round(observed.accumulated_passes))
    of_rank = max(1, round(observed.samples))
    micro = max(1, round(of_rank / accumulated))
    replicas = max(1, ranks // live.model_parallel_ranks)
    return Case(
        name=f"{SCRIPT}/ws{ranks}",
        label=SCRIPT,
        strategy=PluginChoice(name, options),
        workload=PluginChoice(SCRIPT, {"command": argv}),
        data=PluginChoice(SCRIPT),
        world_size=ranks,
        device="cuda" if live.device.type == "cuda" else "cpu",
        batch=Batch(max(1, round(of_rank * replicas)), micro, accumulated),
        optimizer=_optimizer(live.optimizers, observed.clipping),
        precision=_precision(live, observed),
        activation_checkpointing="full" if checkpointed_modules(live) else "none",
        threads=torch.get_num_threads(),
        seed=0,
        compile=_compile_mode(live),
    )


def live_settings(live: LiveTraining, case: Case) -> dict[str, Any]:
    """Settings of the live objects, with the keys of ``Engine.effective_settings`` that they tell."""
    precision = case.precision
    return {
        "world_size": case.world_size,
        "strategy": {"name": case.strategy.name, **case.strategy.options},
        **parameter_counts(live.parameters, elements),
        "optimizer": _described(live.optimizers),
        "dtypes": {
            "parameters": dtype_name(p.dtype for p in live.parameters if p.is_floating_point()),
            "compute": precision.compute,
            "reduce": precision.reduce,
            "master": precision.master,
        },
        "loss_scale": precision.loss_scale,
        "global_batch_size": case.batch.global_batch_size,
        "micro_batch_size": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        "checkpointed_layers": checkpointed_modules(live),
        "compile": case.compile,
        "wrappers": _wrappers(live),
        "model": _model(live),
    }


def checkpointed_modules(live: LiveTraining) -> int:
    """Number of modules that say that they recompute their activations."""
    wrapped = [each for each in live.modules_of(nn.Module) if type(each).__name__ == "CheckpointWrapper"]
    # transformers marks the layers of a model
    flagged = [each for each in live.modules_of(nn.Module) if getattr(each, "gradient_checkpointing", False)]
    return len(wrapped) + len(flagged)


def _model(live: LiveTraining) -> dict[str, Any]:
    """Class of a model of transformers, and what of its configuration is no default; empty: it is none."""
    for module in live.modules_of(nn.Module):
        config: Any = getattr(module, "config", None)
        if not callable(getattr(config, "to_json_string", None)):
            continue
        own, kind = json.loads(config.to_json_string(use_diff=False)), cast("Any", type(config))
        has_defaults = not getattr(kind, "has_no_defaults_at_init", False)
        defaults = json.loads(kind().to_json_string(use_diff=False)) if has_defaults else {}
        always = ("model_type", "vocab_size")
        kept = {key: own[key] for key in own if key in always or own[key] != defaults.get(key)}
        return {"class": type(module).__name__, "config": kept}
    return {}


def _wrappers(live: LiveTraining) -> list[str]:
    return [f"{type(model).__module__}.{type(model).__qualname__}" for model in live.models]


def _described(optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    every = []
    for each in _trained(optimizers):
        try:
            every.append(describe_optimizer(each))
        except ValueError:
            # groups differ, as with weight decay on matrices alone
            kind = type(each)
            every.append(
                {"class": f"{kind.__module__}.{kind.__qualname__}", "groups": len(each.param_groups)}
            )
    first, *others = every or [{}]
    return {**first, "others": others} if others else first


def _trained(optimizers: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """Those of *optimizers* that keep something: wrappers of frameworks don't."""
    return [each for each in optimizers if getattr(each, "state", None)] or optimizers[-1:]


def _optimizer(optimizers: list[torch.optim.Optimizer], clipping: float | None) -> OptimizerConfig:
    if not optimizers:
        return ObservedOptimizer(NO_OPTIMIZER, lr=sys.float_info.min)
    live = max(
        _trained(optimizers), key=lambda each: sum(len(group["params"]) for group in each.param_groups)
    )
    group = live.param_groups[0]
    known = {kind.import_path.rpartition(".")[2]: name for name, kind in CATALOG.items()}
    name = known.get(type(live).__name__, "")
    if type(live).__name__ in ("FusedAdam", "DeepSpeedCPUAdam"):
        name = "adamw" if getattr(live, "adam_w_mode", True) else "adam"
    rate = float(group.get("initial_lr", group.get("lr", 0)))
    given: dict[str, Any] = {"name": name, "lr": min(max(rate, sys.float_info.min), Bound(0).high)}
    for key in ("eps", "momentum", "weight_decay", "betas"):
        # only what a case can have: an eps of 0 or two of them stay among the live settings
        with suppress(KeyError, TypeError, ValueError, RecordError):
            given[key] = getattr(decode(OptimizerConfig, {key: _plain(group[key])}, key), key)
    if clipping is not None and 0 < clipping < math.inf:
        given["clip_grad_norm"] = clipping
    if group.get("fused"):
        given["kernel"] = "fused"
    else:
        given["kernel"] = "loop" if group.get("foreach") is False else "foreach"
    return OptimizerConfig(**given) if name else ObservedOptimizer(**given | {"name": type(live).__name__})


def _plain(value: Any) -> Any:
    return [float(each) for each in value] if isinstance(value, tuple | list) else float(value)


def _precision(live: LiveTraining, observed: ObservedSteps) -> PrecisionConfig:
    kept = _named(dtype_name(p.dtype for p in live.parameters if p.is_floating_point()))
    compute = reduce = master = kept
    if engine := live.deepspeed:
        compute = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else kept
        master = "fp32" if compute in ("bf16", "fp16") else kept
        reduce = compute
    elif unit := next(live.modules_of(FSDPModule), None):
        compute, reduce = _named(compute_dtype(unit)), _named(reduce_dtype(unit))
    elif (mixed := _mixed_precision(live)) is not None:
        compute = _named(dtype_name([mixed.param_dtype])) if mixed.param_dtype else kept
        # FSDP1 reduces in the dtype of its computation unless told otherwise
        reduce = _named(dtype_name([mixed.reduce_dtype])) if mixed.reduce_dtype else compute
    if observed.autocast is not None:
        compute = _named(dtype_name([observed.autocast]))
    return PrecisionConfig(
        compute=compute,
        reduce=reduce,
        master=master,
        optimizer_state=master,
        loss_scale="dynamic" if observed.skips else None,
        matmul="highest" if torch.get_float32_matmul_precision() == "highest" else "high",
    )


def _mixed_precision(live: LiveTraining) -> MixedPrecision | None:
    unit = next(live.modules_of(FullyShardedV1), None)
    return None if unit is None else cast("MixedPrecision", unit.mixed_precision)


def _named(name: str) -> Dtype:
    """The dtype called *name*; of mixed ones, the widest."""
    known: tuple[Dtype, ...] = get_args(Dtype)
    return next((each for each in known if each in name.split("+")), "fp32")


def _compile_mode(live: LiveTraining) -> CompileMode:
    compiled = [
        each
        for each in live.modules_of(nn.Module)
        if type(each).__name__ == "OptimizedModule" or getattr(each, "_compiled_call_impl", None) is not None
    ]
    return "default" if compiled else "none"


def mean(values: list[float]) -> float:
    """Mean of *values*; 0 without any."""
    return math.fsum(values) / len(values) if values else 0.0


def most_frequent(numbers: list[float]) -> float:
    """Most frequent of *numbers*; 0 without any: the last batch of an epoch may be smaller."""
    return Counter(numbers).most_common(1)[0][0] if numbers else 0.0
