"""Machines that are not at hand, as ``distbench plan`` is told of them: ``--on h100-sxm:8x8``, or a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from distbench.core import registry
from distbench.core.bounds import Bound, Count, Name
from distbench.core.errors import SuiteError, UsageError
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import Problem
from distbench.core.units import parse_bandwidth, parse_bytes
from distbench.suite.sections import check_section
from distbench.suite.suite import locate_problems
from distbench.suite.yaml_reader import parse_suite, read_suite_text
from distbench.system.gpu_types import (
    GPU_TYPES,
    GpuCluster,
    GpuType,
    is_gpu_cluster,
    parse_gpu_cluster,
    type_hint,
)
from distbench.system.machine import described_machine, gpu_nodes

_SUFFIXES = (".yaml", ".yml")
_NEEDS = "a machine needs at least gpu and gpus_per_node"


@dataclass(frozen=True)
class MachineFile:
    """A machine in a file: nodes with equal GPUs."""

    gpu: Name
    """Type of the GPUs (docs/planning.md), or any other name, with memory and compute_capability."""
    gpus_per_node: Count
    nodes: Count = 1
    memory: str | None = None
    """Memory of a GPU, such as 96GiB; null: that of its type."""
    compute_capability: Annotated[float, Bound(1, 99)] | None = None
    """Compute capability, such as 9.0; null: that of its type."""
    inside: str | None = None
    """Bandwidth of a GPU inside its node in one direction, such as 450GB/s; null: that of its type."""
    between: str | None = None
    """Bandwidth of a GPU between nodes in one direction, such as 400Gb/s; null: that of its type."""
    cores: Count | None = None
    """CPU cores of a node; null: those of this machine."""


def find_described_machine(on: str, nodes: int | None, gpus_per_node: int | None) -> Machine | None:
    """The machine that the options of ``plan`` describe; None: the one that the suite's launcher has.

    Args:
        on: Type of GPUs with their numbers, a file, or a launcher, which describes none.

    Raises:
        UsageError: the description has another form, or there are two of them.
    """
    is_file = on.endswith(_SUFFIXES)
    if not (is_file or is_gpu_cluster(on)):
        if on and on not in registry.plugin_names("launchers"):
            hint = type_hint(on, registry.plugin_names("launchers"))
            raise UsageError(f"--on = {on!r}: neither a launcher nor a type of GPU; {hint}")
        return gpu_nodes(nodes or 1, gpus_per_node) if gpus_per_node else None
    if nodes or gpus_per_node:
        raise UsageError(
            f"--on = {on!r} has the nodes and their GPUs already; leave out --nodes and --gpus-per-node"
        )
    return read_machine_file(Path(on)) if is_file else described_machine(parse_gpu_cluster(on))


def read_machine_file(file: Path) -> Machine:
    """The machine that *file* describes.

    Raises:
        SuiteError: all mistakes in the file, each with its line.
    """
    tree, places = parse_suite(read_suite_text(file), str(file), _NEEDS)
    read, problems = check_section(MachineFile, tree, ())
    if read is None:
        raise SuiteError(locate_problems(problems, places))
    memory = _parse(parse_bytes, "memory", read.memory, problems)
    inside = _parse(parse_bandwidth, "inside", read.inside, problems)
    between = _parse(parse_bandwidth, "between", read.between, problems)
    known = GPU_TYPES.get(read.gpu)
    if known is None and (read.memory is None or read.compute_capability is None):
        hint = type_hint(read.gpu)
        message = f"no type that distbench knows; {hint}; or give memory and compute_capability with it"
        problems.append(Problem(("gpu",), message, read.gpu))
    if problems:
        raise SuiteError(locate_problems(problems, places))
    usual = known or GpuType(read.gpu, 0, None)
    size = usual.memory if memory is None else int(memory)
    gpu = GpuType(read.gpu, size, read.compute_capability or usual.compute_capability)
    machine = described_machine(GpuCluster(gpu, read.nodes, read.gpus_per_node))
    return dataclasses.replace(machine, cores=read.cores or machine.cores, inside=inside, between=between)


def _parse(
    parse: Callable[[str], float], key: str, text: str | None, problems: list[Problem]
) -> float | None:
    """Number in *text*, or None without one; what is wrong with it is added to *problems*."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        problems.append(Problem((key,), str(error), text))
        return None
