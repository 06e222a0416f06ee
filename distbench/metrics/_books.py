"""Allocators' own books: how many bytes stand, and how many stood at most."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import Any

import torch

from distbench.metrics import _cpu_allocator
from distbench.metrics.base import Absent, Session, Values

_FAULTS = {"memory_alloc_retries": "num_alloc_retries", "memory_ooms": "num_ooms"}
_CUDA_ONLY = (*_FAULTS, "memory_active_peak", "memory_reserved_peak", "memory_pinned_peak")
_NO_CACHE = Absent("on CUDA only: torch's CPU allocator caches, reserves and pins nothing")
_NOT_TOLD = Absent("this torch does not tell what its pinned host allocator holds")


class Books(ABC):
    """What an allocator says of itself; nothing here waits for a device."""

    @abstractmethod
    def allocated(self) -> int:
        """Return the bytes of tensors alive now."""

    @abstractmethod
    def peak(self) -> int:
        """Return the most bytes alive at once since ``reset_peak``."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Begin to look for the peak anew."""

    def faults(self) -> dict[str, int]:
        """Return counts, since the process began, of what should not happen, by column."""
        return {}

    @abstractmethod
    def values(self, faults_before: dict[str, int]) -> Values:
        """Return the peaks since ``reset_peak`` and the faults since *faults_before*, by column."""


class CpuBooks(Books):
    """Those of the counting allocator."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def allocated(self) -> int:
        return int(self._library.distbench_current())

    def peak(self) -> int:
        return int(self._library.distbench_peak())

    def reset_peak(self) -> None:
        self._library.distbench_reset_peak()

    def values(self, faults_before: dict[str, int]) -> Values:
        return {"memory_peak": self.peak(), **dict.fromkeys(_CUDA_ONLY, _NO_CACHE)}


class CudaBooks(Books):
    """Those of torch's caching allocator, of the device that needs most."""

    def __init__(self, devices: list[Any]) -> None:
        self._devices = devices

    def allocated(self) -> int:
        return max(torch.cuda.memory_allocated(device) for device in self._devices)

    def peak(self) -> int:
        return self._most("allocated_bytes.all.peak")

    def reset_peak(self) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def faults(self) -> dict[str, int]:
        return {column: self._total(name) for column, name in _FAULTS.items()}

    def values(self, faults_before: dict[str, int]) -> Values:
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
        return {
            "memory_peak": self.peak(),
            "memory_active_peak": self._most("active_bytes.all.peak"),
            "memory_reserved_peak": self._most("reserved_bytes.all.peak"),
            "memory_pinned_peak": _NOT_TOLD if pinned is None else pinned,
            **{column: count - faults_before[column] for column, count in self.faults().items()},
        }

    def _most(self, name: str) -> int:
        return int(max(torch.cuda.memory_stats(device)[name] for device in self._devices))

    def _total(self, name: str) -> int:
        return sum(torch.cuda.memory_stats(device)[name] for device in self._devices)


def books_of(session: Session) -> Books | None:
    """Return the books of the allocator that *session*'s rank uses; None: nobody keeps any."""
    if session.device.type == "cuda":
        return CudaBooks(_cuda_devices(session))
    library = _cpu_allocator.library()
    return CpuBooks(library) if library else None


def _cuda_devices(session: Session) -> list[Any]:
    """Return the devices that this process drives: its own, or with nn.DataParallel all of them."""
    if session.world_size < session.case.world_size:
        return list(range(session.case.world_size))
    return [session.device]
