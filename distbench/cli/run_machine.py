"""Machine that the cases of a run are extrapolated to: more of the devices that it was measured on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.cli.described_machine import find_described_machine
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.record import Record, Status
from distbench.system.gpu_data_sheets import type_of_gpu
from distbench.system.gpu_types import GPU_TYPES, GpuCluster
from distbench.system.machine import described_machine, detect_machine, gpu_nodes


def extrapolation_machine(run: RunAnalysis, on: str, devices: int) -> Machine:
    """Nodes like those of *run* with at least that many *devices*, or those that *on* describes.

    Raises:
        UsageError: *on* describes none, or other devices than those of the run.
        SuiteError: *on* is a file with mistakes.
        InfrastructureError: this machine's facts can't be read.
    """
    record = next((each for each in run.timed_records if each.status is Status.MEASURED), None)
    if record is None or record.case.device == "cpu":
        if on:
            raise UsageError(f"--on = {on!r}: the run was measured on CPUs, not on GPUs; leave it out")
        return _cpus(run.info.machine)
    gpu = str(record.environment.get("gpu", ""))
    own = type_of_gpu(gpu)
    if on:
        machine = find_described_machine(on, None, None)
        if machine is None:
            raise UsageError(
                f"--on = {on!r}: expected GPUs, such as {own or 'h100-sxm'}:8x8 for 8 nodes of 8, or "
                "machine.yaml"
            )
        if own and machine.gpu_type != own:
            raise UsageError(
                f"--on = {on!r}: the run was measured on {gpu}, which is {own}; its steps say nothing of "
                f"{machine.gpu_type}"
            )
        return machine
    per_node = _gpus_per_node(record)
    nodes = -(-devices // per_node)
    if not own:
        return gpu_nodes(nodes, per_node)
    return described_machine(GpuCluster(GPU_TYPES[own], nodes, per_node))


def _cpus(facts: Mapping[str, Any]) -> Machine:
    here, memory = detect_machine("cpu"), facts.get("memory_bytes")
    return dataclasses.replace(here, memory=memory if isinstance(memory, int) else None)


def _gpus_per_node(record: Record) -> int:
    """GPUs of a node: the ranks on one of several, or else those of the only one."""
    if len(record.nodes) > 1:
        return max(len(ranks) for ranks in record.nodes.values())
    gpus = record.environment.get("gpus")
    return max(record.case.world_size, len(gpus) if isinstance(gpus, list) else 0)
