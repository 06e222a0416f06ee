"""Resources for cases: devices, cores, memory and packages of a machine or of identical nodes."""

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from distbench.core.case import CURRENT_ENVIRONMENT, Case, Device


def package_folder(package: str) -> str:
    """Folder of *package*, found without importing it; empty: it is not installed."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return next(iter(places or ()), "")


def parse_release(version: str) -> tuple[int, ...]:
    """First three numbers of *version*: (0, 19, 8) for ``0.19.8+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


@dataclass(frozen=True)
class Machine:
    """Resources available to a case: one machine, or identical nodes of a cluster."""

    device: Device
    devices: int
    """CUDA devices of all nodes, or CPU cores on them that ranks may use."""
    packages: dict[str, str]
    """Relevant installed distributions with their versions."""
    has_libaio: bool
    """True if libaio can be loaded, which DeepSpeed's NVMe offload needs."""
    has_compiler: bool
    """True if a C++ compiler is on the path."""
    has_ninja: bool = True
    """True if ninja is on the path; DeepSpeed uses it to build its ops and to check if they are current."""
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """CPU cores of one node that ranks may use."""
    nodes: int = 1
    device_memory: int | None = None
    """Bytes of the smallest CUDA device; None: unknown, or computing on CPUs."""
    gpu_type: str = ""
    """Name of the type of its GPUs, where they are described and not at hand."""
    inside: float | None = None
    """Bytes/s of a GPU to another one of its node, in one direction; None: as its data sheet says."""
    between: float | None = None
    """Bytes/s of a GPU to other nodes, in one direction; None: as in the vendor's own system."""
    compute_capability: float | None = None
    """Lowest compute capability of the CUDA devices; None: unknown, or computing on CPUs."""
    memory: int | None = None
    """Bytes of host memory of one node that ranks may use; None: unknown."""
    python: str = field(default_factory=platform.python_version)
    """Version of the Python that ranks run on."""
    prefix: str = sys.prefix
    """Folder of the Python environment that ranks run in."""
    deepspeed: str = field(default_factory=lambda: package_folder("deepspeed"))
    """Folder of DeepSpeed's package in it; empty: it is not installed."""
    environments: Mapping[str, "Machine"] = field(default_factory=dict)
    """The machine as the suite's other Python environments see it, by their names."""

    @property
    def devices_per_node(self) -> int:
        """CUDA devices of each node, or CPU cores on it that ranks may use."""
        return self.devices // self.nodes

    def for_case(self, case: Case) -> "Machine":
        """The machine as the processes of *case* see it."""
        return self if case.environment == CURRENT_ENVIRONMENT else self.environments[case.environment]
