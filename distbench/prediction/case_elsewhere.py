"""A measured case on other numbers of devices: the same strategy and model, with more data parallelism."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

from distbench.core import registry
from distbench.core.case import Batch, Case
from distbench.core.machine import Machine
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.core.units import join_words
from distbench.strategies.base import Strategy
from distbench.suite.batch import BatchConfig, IndivisibleBatchError

Scaling = Literal["weak", "strong"]
"""weak: each device keeps its samples of a step; strong: all devices share those of the measured step."""


def case_on(case: Case, devices: int, scaling: Scaling, machine: Machine) -> Case | str:
    """*case* on another number of *devices* of *machine*, or the reason why it can't run on them.

    Only dimensions that split samples grow: ranks that split a model, or rows, stay as many as they are.
    """
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    if reason := _mesh_problem(strategy, case.world_size, devices):
        return reason
    ranks = strategy.data_parallel_size(devices)
    try:
        batch = _batch(case.batch, scaling, devices, ranks)
    except IndivisibleBatchError as error:
        return f"{error.reason}, or --scaling weak, which keeps the samples of a device"
    name = re.sub(r"/ws\d+", f"/ws{devices}", case.name)
    moved = replace(case, name=name, world_size=devices, batch=batch)
    return strategy.problem(moved, machine) or moved


def _mesh_problem(strategy: Strategy, measured: int, devices: int) -> str:
    """Reason why *devices* do not have the mesh of the *measured* ones with more data parallelism."""
    if devices not in (runs_on := strategy.world_sizes([devices])):
        return f"{strategy.label} runs on {join_words([*map(str, runs_on)])} only"
    before, after = strategy.mesh_sizes(measured), strategy.mesh_sizes(devices)
    grown = [name for name, size in after.items() if name not in DATA_DIMENSIONS and size != before[name]]
    if grown:
        return (
            f"{' and '.join(grown)} would grow with the devices, and only data parallelism is extrapolated; "
            f"measure it in a mesh with {grown[0]} of a fixed size"
        )
    fixed = {name: size for name, size in after.items() if name not in DATA_DIMENSIONS and size > 1}
    if devices % math.prod(fixed.values()):
        sizes = " x ".join(f"{name} {size}" for name, size in fixed.items())
        return f"{devices} devices are no multiple of {sizes}, which stay as they were measured"
    return ""


def _batch(batch: Batch, scaling: Scaling, devices: int, ranks: int) -> Batch:
    """*batch* for *devices*, of which *ranks* have samples of their own; with the micro-batch that it has.

    Raises:
        IndivisibleBatchError: the ranks can't share it.
    """
    micro, count = batch.micro_batch_size, batch.gradient_accumulation_steps
    if scaling == "weak":
        return Batch(micro * count * ranks, micro, count)
    whole = batch.global_batch_size
    if whole % ranks == 0 and whole // ranks < micro:
        return BatchConfig(global_batch_size=whole).divide(devices, ranks)
    return BatchConfig(global_batch_size=whole, micro_batch_size=micro).divide(devices, ranks)
