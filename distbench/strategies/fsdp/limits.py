"""Meshes and options that FSDP can't run. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies import _in_backward
from distbench.strategies.requirements import (
    fused_sgd_problem,
    nearest_text,
    optimizer_problem,
    unused_option_problem,
)

if TYPE_CHECKING:
    from distbench.strategies.fsdp import FullyShardedDataParallel


def fsdp_problem(strategy: FullyShardedDataParallel, case: Case, machine: Machine) -> str | None:
    """Reason why *strategy* can't train *case* on *machine*; None if it can."""
    return (
        _option_problem(strategy)
        or unit_problem(strategy, strategy.layer_count(case))
        or _mesh_problem(strategy, case)
        or (_group_problem(strategy, case.world_size, machine) if strategy.sharding == "hybrid" else None)
        or (_fsdp1_problem(strategy, case) if strategy.version == 1 else fused_sgd_problem(case))
        or (_in_backward_problem(strategy, case) if strategy.optimizer_in_backward else None)
        or optimizer_problem(case, "rows" if strategy.version == 2 else "flat", strategy.label)
    )


def _option_problem(strategy: FullyShardedDataParallel) -> str | None:
    is_hybrid = strategy.sharding == "hybrid"
    needs = {
        "replicas": (
            is_hybrid and strategy.shards is None,
            "shards: null" if is_hybrid else "sharding: hybrid",
        ),
        "shards": (is_hybrid, "sharding: hybrid"),
        "reshard_root": (strategy.version == 2, "version: 2"),
        "layers_per_unit": (strategy.version == 2, "version: 2"),
        "forward_prefetch": (strategy.version == 2, "version: 2"),
        "backward_prefetch": (strategy.version == 2, "version: 2"),
    }
    if strategy.version == 2 and strategy.sharding == "grad_op":
        needs["backward_prefetch"] = (False, "sharding: full or hybrid")
    return unused_option_problem(strategy, type(strategy)(), needs)


def unit_problem(strategy: FullyShardedDataParallel, layers: int | None) -> str | None:
    """Reason why *layers* can't form the units of *strategy*; None if they can, or are not known yet."""
    size = strategy.layers_per_unit
    if layers is None:
        return None
    if size > max(layers, 1):
        return f"layers_per_unit = {size}, but the model has {layers} layers to shard; at most that"
    units = -(-layers // size)
    for option in ("forward_prefetch", "backward_prefetch"):
        if (ahead := getattr(strategy, option)) and ahead >= units:
            return f"{option} = {ahead}, but there are {units} units of layers; at most {max(units - 1, 0)}"
    return None


def _fsdp1_problem(strategy: FullyShardedDataParallel, case: Case) -> str | None:
    if strategy.cpu_offload and case.device == "cpu":
        return "FSDP1 with CPU offload needs an accelerator"
    return None


def _mesh_problem(strategy: FullyShardedDataParallel, case: Case) -> str | None:
    """Reason why *case* can't be trained in the mesh of *strategy*; None if it can."""
    sizes, over = strategy.requested_mesh, strategy.tensor_parallelism
    if reason := over.option_problem:
        return reason
    if not sizes:
        return None
    if strategy.version == 1:
        return "mesh needs FSDP2; set version: 2"
    if over.ranks > 1 and strategy.cpu_offload:
        return f"mesh: {{tp: {over.ranks}}} does not support offload; set cpu_offload: false"
    if strategy.sharding == "hybrid" and {"dp_replicate", "dp_shard"} & {*sizes}:
        return (
            "sharding: hybrid and mesh: {dp_replicate, dp_shard} configure the same groups; remove "
            "sharding: hybrid"
        )
    if reason := strategy.mesh_size_problem(case.world_size):
        return reason
    return over.problem(case) if over.ranks > 1 else None


def _group_problem(strategy: FullyShardedDataParallel, world_size: int, machine: Machine) -> str | None:
    """Reason why *world_size* ranks can't form the groups of a hybrid shard; None if they can."""
    name, size = ("replicas", strategy.replicas) if strategy.shards is None else ("shards", strategy.shards)
    ranks, of_one = strategy.data_parallel_size(world_size), machine.devices_per_node
    if ranks < 2:
        return "hybrid sharding needs at least 2 ranks"
    if ranks % size:
        what = "number of data-parallel ranks" if strategy.requested_mesh else "world size"
        least = 2 if strategy.version == 1 else 1
        pairs = [(each, ranks // each) for each in range(1, ranks + 1) if ranks % each == 0]
        fitting = [each for each, other in pairs if (each if name == "shards" else other) >= least]
        return (
            f"hybrid sharding needs a {what} divisible by {name}: {ranks} ranks, {name} = {size}; nearest "
            f"values that fit: {nearest_text(fitting, size)}"
        )
    shards = strategy.device_mesh(world_size).size("dp_shard")
    together = shards * strategy.tensor_parallelism.ranks
    if strategy.version == 1 and shards < 2:
        # it falls back to NO_SHARD inside groups of one rank and never reduces across them
        return (
            "version: 1 with sharding: hybrid needs at least 2 ranks per group, because FSDP1 does not "
            "synchronise replicas of groups with 1 rank; use version: 2, or fewer replicas"
        )
    if strategy.shards is None and world_size > of_one and of_one % together and machine.nodes > 1:
        inside = max(1, shards * of_one // together)
        return (
            f"replicas = {strategy.replicas} makes groups of {together} ranks, but nodes have {of_one} "
            f"devices, so all-gathers would cross nodes; set shards: {inside}, or shards: {shards} to "
            "allow it"
        )
    return None


def _in_backward_problem(strategy: FullyShardedDataParallel, case: Case) -> str | None:
    """Reason why *strategy* can't train *case* with ``optimizer_in_backward``; None if it can."""
    option = _in_backward.OPTION
    if strategy.version == 1:
        return f"{option} needs FSDP2, which has a hook for each reduced gradient; set version: 2"
    if strategy.has_tensor_parallelism:
        return (
            f"{option} is not supported with tp, which reduces gradients of norms after the backward pass; "
            f"set {option}: false"
        )
    if strategy.cpu_offload:
        return f"{option} is not supported with cpu_offload; set one of them to false"
    if strategy.layers_per_unit > 1:
        return f"{option} keeps the gradients of one layer; set layers_per_unit: 1, or {option}: false"
    return _in_backward.optimizer_in_backward_problem(case, on_dtensors=True)
