"""Types of GPUs for plans of machines that are not at hand.

Sources: the vendors' datasheets of these products (memory), and NVIDIA's list of compute capabilities
(https://developer.nvidia.com/cuda-gpus). Their rates are in ``gpu_data_sheets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from distbench.core.errors import UsageError, did_you_mean

_GIB = 2**30
_MOST_GPUS = 1_000_000
_FORM = re.compile(r"(?:(?P<nodes>[0-9]+)x)?(?P<gpus>[0-9]+)")


@dataclass(frozen=True)
class GpuType:
    """A product, as far as a plan needs to know it."""

    name: str
    memory: int
    """Bytes of its memory: the datasheet's GB taken for GiB, which is the most that a driver reports."""
    compute_capability: float | None
    """None: it is not NVIDIA's."""


_MEMORY_AND_CAPABILITY: dict[str, tuple[int, float | None]] = {
    "v100-16gb": (16, 7.0),
    "v100-32gb": (32, 7.0),
    "t4": (16, 7.5),
    "a10": (24, 8.6),
    "a30": (24, 8.0),
    "a40": (48, 8.6),
    "a100-40gb": (40, 8.0),
    "a100-80gb": (80, 8.0),
    "rtx-3090": (24, 8.6),
    "rtx-a6000": (48, 8.6),
    "l4": (24, 8.9),
    "l40": (48, 8.9),
    "l40s": (48, 8.9),
    "rtx-4090": (24, 8.9),
    "h100-sxm": (80, 9.0),
    "h100-pcie": (80, 9.0),
    "h100-nvl": (94, 9.0),
    "h200": (141, 9.0),
    "h200-nvl": (141, 9.0),
    # of a GPU in the systems that NVIDIA sells: 1,440 GB in the 8 of a DGX B200, 372 GB in the 2 of a GB200,
    # 20 TB in the 72 of a GB300 NVL72
    "b200": (180, 10.0),
    "gb200": (186, 10.0),
    "gb300": (279, 10.3),
    "rtx-5090": (32, 12.0),
    # one of the two devices of a module
    "mi250x": (64, None),
    "mi300x": (192, None),
    "mi325x": (256, None),
    "mi355x": (288, None),
}
GPU_TYPES = {
    name: GpuType(name, size * _GIB, capability)
    for name, (size, capability) in _MEMORY_AND_CAPABILITY.items()
}
"""Types by their names in ``--on``."""


@dataclass(frozen=True)
class GpuCluster:
    """Nodes with equal GPUs."""

    gpu: GpuType
    nodes: int
    gpus_per_node: int


def is_gpu_cluster(text: str) -> bool:
    """True if *text* is meant for nodes with GPUs of a type, not for a launcher."""
    return ":" in text or text in GPU_TYPES


def type_hint(name: str, others: Iterable[str] = ()) -> str:
    """Hint for *name*, which is no type: its variants, or the nearest of the types and of *others*."""
    variants = [each for each in GPU_TYPES if each.startswith(f"{name}-")]
    return f"use {' or '.join(variants)}" if variants else did_you_mean(name, (*others, *GPU_TYPES))


def parse_gpu_cluster(text: str) -> GpuCluster:
    """Nodes with GPUs that ``TYPE:NODESxGPUS`` or ``TYPE:GPUS`` (one node) describes.

    Raises:
        UsageError: there is no such type, or the numbers have another form.
    """
    name, _, size = text.partition(":")
    if name not in GPU_TYPES:
        raise UsageError(f"--on = {text!r}: unknown type of GPU {name!r}; {type_hint(name)}")
    found = _FORM.fullmatch(size)
    if not found:
        raise UsageError(
            f"--on = {text!r}: expected TYPE:NODESxGPUS, such as {name}:8x8 for 8 nodes with 8 GPUs each, or "
            f"{name}:8 for one node"
        )
    nodes, gpus = int(found["nodes"] or 1), int(found["gpus"])
    if not 1 <= nodes * gpus <= _MOST_GPUS:
        raise UsageError(f"--on = {text!r}: {nodes * gpus:,} GPUs; must be from 1 to {_MOST_GPUS:,}")
    return GpuCluster(GPU_TYPES[name], nodes, gpus)
