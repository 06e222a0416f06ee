"""Checks of the live engine, data and gradients against the request, before anything is timed.

Today's tools start one process instead of two, run DDP instead of FSDP, feed all ranks the same data, or
clip gradients by a hidden default, all with exit code 0.
"""

import dataclasses
import importlib.metadata
import os
from typing import Any

import torch.distributed as dist

from distbench import optimizers
from distbench.core import lr_schedule, registry
from distbench.core.case import NATIVE_ENGINE, Case, OptimizerConfig
from distbench.core.errors import Mismatch
from distbench.engines.base import FRAMEWORK, engine_of
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.worker.batches import MicroBatchReader

# far above rounding differences between ranks, and far below those of ranks that are not synchronised
_NORM_TOLERANCE = 1e-3
_NOT_REPORTED = object()
# settings that a rank without trained elements cannot report
_OPTIMIZER_KEYS = ("optimizer", "dtypes", "optimizer_state_on")


def check_engine(strategy: Strategy, engine: Engine, case: Case) -> None:
    """Raise Mismatch unless the live engine and the process group are the requested ones."""
    classes = [cls.__name__ for cls in type(engine.framework_engine).__mro__]
    expected = engine_of(case).engine_class(strategy)
    if expected not in classes:
        raise Mismatch(f"engine: expected {expected!r}, found {classes[0]!r}")
    processes = strategy.processes(case.world_size)
    _require_equal(
        {
            "processes": (processes, dist.get_world_size()),
            "WORLD_SIZE": (str(processes), os.environ.get("WORLD_SIZE")),
        }
    )


def check_variables(case: Case) -> dict[str, Any]:
    """Variables of *case* as this process has them, as effective settings; empty: it has none.

    Raises:
        Mismatch: their values are not the requested ones.
    """
    found = {name: os.environ.get(name) for name in case.env}
    _require_equal({f"env.{name}": (value, found[name]) for name, value in case.env.items()})
    return {"env": found} if found else {}


def describe_framework(case: Case) -> dict[str, str]:
    """Framework of *case* with its version, as an effective setting; empty: its steps are native."""
    framework = engine_of(case)
    names = (*framework.packages, *framework.built_packages)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return {FRAMEWORK: ", ".join(versions) or case.engine.name} if case.engine != NATIVE_ENGINE else {}


def check_data(reader: MicroBatchReader, context: RankContext) -> None:
    """Raise Mismatch if model replicas share samples, or if the ranks of one replica don't.

    Likewise if ranks read other rows from a dataset of the user. A collective call.
    """
    if reader.is_of_user:
        batches: list[str] = [""] * context.world_size
        dist.all_gather_object(batches, reader.fingerprint(0, all_ranks=True))
        if other := next((rank for rank, batch in enumerate(batches) if batch != batches[0]), 0):
            raise Mismatch(
                f"data: rank {other} reads another first global batch than rank 0; the rows of the dataset "
                "must not depend on the process (its rank, the order of a set or of files, the time)"
            )
    fingerprints: list[str | None] = [None] * context.world_size
    parts = context.data_rank_of or range(context.world_size)
    dist.all_gather_object(fingerprints, reader.fingerprint(0))
    for rank, fingerprint in enumerate(fingerprints):
        twin, first = fingerprints.index(fingerprint), parts.index(parts[rank])
        if twin > first:
            raise Mismatch(
                f"data: rank {rank} gets different samples than rank {first}, although they share one "
                "copy of the model; both must get the same part of the global batch"
            )
        if twin < first:
            raise Mismatch(
                f"data: rank {rank} gets the same samples as rank {twin}; every rank must get a "
                "different part of the global batch"
            )


def effective_settings(engine: Engine) -> dict[str, Any]:
    """Effective settings of *engine*; optimizer settings come from a rank that updates parameters.

    A rank may have no trained element: only a shard of frozen parameters, or no tensor at all. A collective
    call.
    """
    own = engine.effective_settings()
    every: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, own)
    of_others = next((each for each in every if _updates_parameters(each)), own)
    return (
        own
        if _updates_parameters(own)
        else own | {key: of_others[key] for key in _OPTIMIZER_KEYS if key in of_others}
    )


def _updates_parameters(effective: dict[str, Any]) -> bool:
    """True if the rank with these settings has gradients or optimizer states."""
    return any(effective.get("dtypes", {}).get(kind) for kind in ("gradients", "optimizer_state"))


def check_effective(effective: dict[str, Any], context: RankContext, updates: int) -> None:
    """Raise Mismatch unless the effective settings of the engine are the requested ones.

    *updates* is the number of updates so far, which determines the learning rate of the next one.
    """
    case = context.case
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    optimizer, kernel = strategy.optimizer_class(case)
    keeps_state = optimizers.keeps_state(case.optimizer)
    dynamic = case.precision.is_scaled_dynamically
    expected: dict[str, Any] = {
        "world_size": case.world_size,
        "global_batch_size": case.batch.global_batch_size,
        "optimizer.class": optimizer,
        "optimizer.kernel": kernel,
        "micro_batch_size": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        "clip_grad_norm": case.optimizer.clip_grad_norm,
        # a scale of 1 changes nothing
        "loss_scale": None if case.precision.loss_scale == 1 else case.precision.loss_scale,
        **({"loss_scale_window": case.precision.loss_scale_window} if dynamic else {}),
        "dtypes.compute": case.precision.compute,
        "dtypes.reduce": case.precision.reduce,
        "dtypes.master": case.precision.master,
        "dtypes.optimizer_state": case.precision.optimizer_state if keeps_state else None,
        "activation_checkpointing": case.activation_checkpointing,
        **strategy.required_settings(case),
    }
    # only engines of compiled modules report this, and those with layers in float8
    if case.compile != "none" or "compile" in effective:
        expected["compile"] = case.compile
    if case.precision.float8 != "none" or "float8" in effective:
        expected |= {key: getattr(case.precision, key) for key in ("float8", "float8_emulated")}
    expected |= _expected_optimizer_settings(case.optimizer)
    # an engine that reports it has a schedule, whether or not one was requested
    is_told = _look_up(effective, "optimizer.next_lr") is not _NOT_REPORTED
    if is_told or lr_schedule.is_scheduled(case.optimizer):
        expected["optimizer.next_lr"] = case.optimizer.lr * lr_schedule.lr_factor(case.optimizer, updates)
    if (parameters := context.workload.parameters()) is not None:
        expected["parameters"] = parameters
    if strategy.data_parallel_size(case.world_size) == 1 and _look_up(effective, "dtypes.reduce") is None:
        # if all devices have the same rows, no gradients are reduced
        del expected["dtypes.reduce"]
    _require_equal({key: (value, _look_up(effective, key)) for key, value in expected.items()})


def _expected_optimizer_settings(spec: OptimizerConfig, prefix: str = "optimizer") -> dict[str, Any]:
    """Hyperparameters of the optimizer in *spec*, and of its companion for the rest, under *prefix*."""
    kind = optimizers.entry_of(spec)
    own = {
        f"{prefix}.{k}": v
        for k, v in kind.hyper_parameters(spec).items()
        if k not in optimizers.ALGORITHM_FLAGS
    }
    own |= {f"{prefix}.{key}": getattr(spec, key) for key in kind.checked_keys}
    if not kind.companion:
        return own
    rest = dataclasses.replace(spec, name=kind.companion)
    own[f"{prefix}.rest.class"] = optimizers.entry_of(rest).live_class
    return own | _expected_optimizer_settings(rest, f"{prefix}.rest")


def check_equal_norms(norms: list[float], processes: int) -> None:
    """Raise Mismatch unless all ranks see the same gradients. A collective call.

    The norm of reduced gradients is one number; on ranks that are not synchronised it differs.
    """
    norms_of_ranks: list[list[float]] = [[]] * processes
    dist.all_gather_object(norms_of_ranks, norms)
    for step, of_ranks in enumerate(zip(*norms_of_ranks, strict=True)):
        if max(of_ranks) - min(of_ranks) > _NORM_TOLERANCE * max(of_ranks):
            raise Mismatch(
                f"gradients: ranks are not synchronised; their norms in check step {step} are {of_ranks}"
            )


def _look_up(effective: dict[str, Any], key: str) -> Any:
    value: Any = effective
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return _NOT_REPORTED
        value = value[part]
    return tuple(value) if isinstance(value, list) else value


def _require_equal(pairs: dict[str, tuple[Any, Any]]) -> None:
    wrong = [
        f"{key}: expected {expected!r}, "
        + ("but the engine did not report it" if found is _NOT_REPORTED else f"found {found!r}")
        for key, (expected, found) in pairs.items()
        if expected != found
    ]
    if wrong:
        raise Mismatch("; ".join(wrong))
