"""Nodes of a run, and those that it is extrapolated to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.cli.described_machine import find_described_machine
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.record import Record, Status
from distbench.system.gpu_data_sheets import type_of_gpu
from distbench.system.gpu_types import GPU_TYPES, GpuCluster
from distbench.system.machine import described_machine, detect_machine, gpu_nodes


def run_machine(run: RunAnalysis, on: Machine | None, devices: int) -> Machine:
    """Nodes like those of *run*, with at least that many *devices*.

    Args:
        on: Nodes whose GPUs those of the run are, if their own type is unknown.

    Raises:
        InfrastructureError: this machine's facts can't be read.
    """
    records = _measured_records(run)
    if not records or records[0].case.device == "cpu":
        return _cpus(run.info.machine)
    per_node = _gpus_per_node(records)
    nodes = -(-max(devices, *(each.case.world_size for each in records)) // per_node)
    own = type_of_gpu(_gpu(records[0]))
    if own:
        return described_machine(GpuCluster(GPU_TYPES[own], nodes, per_node))
    machine = gpu_nodes(nodes, per_node)
    if on is None:
        return machine
    return dataclasses.replace(
        machine,
        gpu_type=on.gpu_type,
        device_memory=on.device_memory,
        compute_capability=on.compute_capability,
    )


def other_machine(run: RunAnalysis, on: str) -> Machine | None:
    """Nodes that *on* describes, with GPUs of the type that *run* was measured on; None: *on* is empty.

    Raises:
        UsageError: *on* describes none, or other devices than those of the run.
        SuiteError: *on* is a file with mistakes.
        InfrastructureError: this machine's facts can't be read.
    """
    if not on:
        return None
    records = _measured_records(run)
    if not records or records[0].case.device == "cpu":
        raise UsageError(f"--on = {on!r}: the run was measured on CPUs, not on GPUs; leave it out")
    gpu = _gpu(records[0])
    own, machine = type_of_gpu(gpu), find_described_machine(on, None, None)
    if machine is None:
        raise UsageError(
            f"--on = {on!r}: expected GPUs, such as {own or 'h100-sxm'}:8x8 for 8 nodes of 8, or machine.yaml"
        )
    if own and machine.gpu_type != own:
        raise UsageError(
            f"--on = {on!r}: the run was measured on {gpu}, which is {own}; its steps say nothing of "
            f"{machine.gpu_type}"
        )
    return machine


def _measured_records(run: RunAnalysis) -> list[Record]:
    return [each for each in run.timed_records if each.status is Status.MEASURED]


def _gpu(record: Record) -> str:
    return str(record.environment.get("gpu", ""))


def _cpus(facts: Mapping[str, Any]) -> Machine:
    here, memory = detect_machine("cpu"), facts.get("memory_bytes")
    return dataclasses.replace(here, memory=memory if isinstance(memory, int) else None)


def _gpus_per_node(records: Sequence[Record]) -> int:
    """GPUs of a node: the most ranks on one of several, or else those of the only one."""
    spread = [len(ranks) for each in records if len(each.nodes) > 1 for ranks in each.nodes.values()]
    return max(spread) if spread else max(map(_gpus, records))


def _gpus(record: Record) -> int:
    gpus = record.environment.get("gpus")
    return max(record.case.world_size, len(gpus) if isinstance(gpus, list) else 0)
