"""A measured case on other numbers of devices: the same strategy and model, with more data parallelism."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

from distbench.core import registry
from distbench.core.case import Batch, Case, PluginChoice
from distbench.core.machine import Machine
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.core.units import join_words
from distbench.strategies.base import Strategy
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.suite.batch import BatchConfig, IndivisibleBatchError

Scaling = Literal["weak", "strong"]
"""weak: each device keeps its samples of a step; strong: all devices share those of the measured step."""


def resized_case(case: Case, devices: int, scaling: Scaling, machine: Machine) -> Case | str:
    """*case* on another number of *devices* of *machine*, or the reason why it can't run on them.

    Only dimensions that split samples grow: ranks that split a model, or rows, stay as many as they are.
    """
    before: Strategy = registry.create_plugin("strategies", case.strategy)
    choice = PluginChoice(case.strategy.name, {**case.strategy.options, **_grown_mesh(before, case, devices)})
    strategy: Strategy = registry.create_plugin("strategies", choice)
    if reason := _mesh_problem(before, strategy, case.world_size, devices):
        return reason
    ranks = strategy.data_parallel_size(devices)
    try:
        batch = _batch(case.batch, scaling, devices, ranks)
    except IndivisibleBatchError as error:
        return f"{error.reason}, or --scaling weak, which keeps the samples of a device"
    name = re.sub(r"/ws\d+", f"/ws{devices}", case.name)
    resized = replace(case, name=name, strategy=choice, world_size=devices, batch=batch)
    return strategy.problem(resized, machine) or resized


def _grown_mesh(strategy: Strategy, case: Case, devices: int) -> dict[str, dict[str, int]]:
    """Option ``mesh`` of *strategy* on *devices*, with more data parallelism; empty: it stays as it is."""
    if not isinstance(strategy, MeshStrategy):
        return {}
    sizes, requested, rest = (
        strategy.mesh_sizes(case.world_size),
        strategy.requested_mesh,
        strategy.rest_dimension,
    )
    # of replicas of shards, the replicas
    grows = next((name for name in DATA_DIMENSIONS if requested.get(name, 1) > 1), rest)
    if rest in DATA_DIMENSIONS and (rest not in requested or grows == rest):
        # what defaults to all ranks, as cp does, stays as it is, and the rest is left to grow
        named = {name: size for name, size in sizes.items() if name not in DATA_DIMENSIONS and size > 1}
        mesh = {name: size for name, size in {**requested, **named}.items() if name != rest}
        return {} if mesh == requested else {"mesh": mesh}
    others = math.prod(size for name, size in sizes.items() if name != grows)
    is_possible = grows in DATA_DIMENSIONS and devices % others == 0
    return {"mesh": {**requested, grows: devices // others}} if is_possible else {}


def _mesh_problem(strategy: Strategy, grown: Strategy, measured: int, devices: int) -> str:
    """Reason why *devices* do not have the mesh of the *measured* ones with more data parallelism.

    Args:
        strategy: On the measured devices.
        grown: On the others.
    """
    if devices not in (runs_on := grown.world_sizes([devices])):
        return f"{strategy.label} runs on {join_words([*map(str, runs_on)])} only"
    before, after = strategy.mesh_sizes(measured), grown.mesh_sizes(devices)
    fixed = {name: size for name, size in before.items() if name not in DATA_DIMENSIONS and size > 1}
    changed = [name for name, size in fixed.items() if after.get(name, 1) != size]
    if any(name in before for name in DATA_DIMENSIONS) and devices % math.prod(fixed.values()):
        sizes = " x ".join(f"{name} {size}" for name, size in fixed.items())
        return f"{devices} devices are no multiple of {sizes}, which stay as they were measured"
    if changed:
        return (
            f"{' and '.join(changed)} would grow with the devices, and only data parallelism is "
            "extrapolated; measure it with data parallelism in the same mesh"
        )
    return ""


def _batch(batch: Batch, scaling: Scaling, devices: int, ranks: int) -> Batch:
    """*batch* for *devices*, of which *ranks* have samples of their own; with the micro-batch that it has.

    Raises:
        IndivisibleBatchError: the ranks can't share it.
    """
    micro, count = batch.micro_batch_size, batch.gradient_accumulation_steps
    if scaling == "weak":
        return Batch(micro * count * ranks, micro, count)
    global_batch_size = batch.global_batch_size
    if global_batch_size % ranks == 0 and global_batch_size // ranks < micro:
        return BatchConfig(global_batch_size=global_batch_size).divide(devices, ranks)
    return BatchConfig(global_batch_size=global_batch_size, micro_batch_size=micro).divide(devices, ranks)
