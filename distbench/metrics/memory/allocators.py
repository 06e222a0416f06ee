"""Byte counters and peaks of allocators; on a CPU those of a counting allocator, built once."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from distbench.metrics.base import NotAvailable, PassContext, Values
from distbench.metrics.memory import counting_library
from distbench.system import build_cache
from distbench.system.files import atomic_path
from distbench.system.machine import cxx_compiler

_NO_COMPILER = "exact bytes on a CPU need a C++ compiler: g++ or c++ on the path, or another one named by CXX"


def build_library() -> list[str]:
    """Build the library unless it exists and can be loaded; return messages for users.

    Raises:
        NotAvailable: there is no C++ compiler, or it failed.
        LibraryError: the library can't be loaded.
        OSError: the cache can't be written.
    """
    target = counting_library.library_file(torch.__version__)
    return build_cache.ensure_built(target, functools.partial(_build, target), target)


def _build(target: Path) -> None:
    cxx = cxx_compiler()
    if cxx is None:
        raise NotAvailable(_NO_COMPILER)
    command = [*cxx, "-O2", "-shared", "-fPIC", "-std=c++20", str(counting_library.SOURCE)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{folder}" for folder in cpp_extension.include_paths()]
    command += [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-lc10"]
    with atomic_path(target) as aside:
        done = subprocess.run([*command, "-o", str(aside)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailable(f"the counting allocator could not be built: {done.stderr[-2000:]}")


def missing_library_reason() -> str:
    """Reason why there is no library."""
    if cxx_compiler() is None:
        return _NO_COMPILER
    return "the counting allocator was not built; see the log of the run's preparation"


_EVENT_COUNTERS = {"memory_alloc_retries": "num_alloc_retries", "memory_ooms": "num_ooms"}
_CUDA_ONLY = (
    *_EVENT_COUNTERS,
    "memory_active_peak",
    "memory_reserved_peak",
    "memory_device_peak",
    "memory_pinned_peak",
)
_NO_CACHE = NotAvailable("CUDA only: torch's CPU allocator does not cache, reserve or pin memory")
_NO_PINNED_STATS = NotAvailable("this torch version does not report pinned host memory")


class CpuAllocatorStats:
    """Counters of the counting CPU allocator. No method waits for a device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def allocated(self) -> int:
        """Bytes of live tensors."""
        return int(self._library.distbench_current())

    def peak(self) -> int:
        """Maximum of live bytes since ``reset_peak``."""
        return int(self._library.distbench_peak())

    def reset_peak(self) -> None:
        """Reset the peak."""
        self._library.distbench_reset_peak()

    def values(self) -> Values:
        """Peaks and event counts since ``reset_peak``, by column."""
        return {"memory_peak": self.peak(), **dict.fromkeys(_CUDA_ONLY, _NO_CACHE)}


class CudaAllocatorStats:
    """Counters of torch's caching allocator, of the device that needs most."""

    def __init__(self, devices: list[Any]) -> None:
        self._devices = devices
        self._events_before = dict.fromkeys(_EVENT_COUNTERS, 0)

    def allocated(self) -> int:
        return max(torch.cuda.memory_allocated(device) for device in self._devices)

    def peak(self) -> int:
        return self._max_stat("allocated_bytes.all.peak")

    def reset_peak(self) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)
        self._events_before = self._event_counts()

    def values(self) -> Values:
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
        return {
            "memory_peak": self.peak(),
            "memory_active_peak": self._max_stat("active_bytes.all.peak"),
            "memory_reserved_peak": self._max_stat("reserved_bytes.all.peak"),
            "memory_device_peak": max(map(_device_peak, self._devices)),
            "memory_pinned_peak": _NO_PINNED_STATS if pinned is None else pinned,
            **{column: count - self._events_before[column] for column, count in self._event_counts().items()},
        }

    def _event_counts(self) -> dict[str, int]:
        """Counts since process start of events that should not happen, by column."""
        return {column: sum(self._stats(name)) for column, name in _EVENT_COUNTERS.items()}

    def _max_stat(self, name: str) -> int:
        return max(self._stats(name))

    def _stats(self, name: str) -> list[int]:
        return [int(torch.cuda.memory_stats(device)[name]) for device in self._devices]


def _device_peak(device: Any) -> int:
    """Peak of the allocator's segments on *device*, plus all other memory in use on it now."""
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    outside = total - free - stats["reserved_bytes.all.current"]
    return int(stats["reserved_bytes.all.peak"] + max(0, outside))


AllocatorStats = CpuAllocatorStats | CudaAllocatorStats


def allocator_stats(context: PassContext) -> AllocatorStats | None:
    """Counters of the allocator that the rank of *context* uses; None if it has none."""
    if context.device.type == "cuda":
        return CudaAllocatorStats(
            list(range(context.devices_per_rank)) if context.devices_per_rank > 1 else [context.device]
        )
    counting = counting_library.installed()
    return CpuAllocatorStats(counting) if counting else None
