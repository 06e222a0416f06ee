"""``memory``: what a rank needs at most, from the allocator's own books."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.metrics.base import Absent, Column, Metric, Session, Values


@dataclass(frozen=True)
class Memory(Metric):
    """Peak memory of a rank over the timed steps: allocator-level bytes, never the resident set alone."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "memory_peak",
            "B",
            "lower",
            "max",
            "Most bytes of tensors alive at once in the timed steps, of the rank that needs most. CUDA: "
            "allocated_bytes.all.peak. CPU: counted in torch's CPU allocator.",
        ),
        Column(
            "memory_reserved_peak",
            "B",
            "lower",
            "max",
            "CUDA: reserved_bytes.all.peak, the segments taken from the device: nearest to out-of-memory.",
        ),
        Column(
            "memory_alloc_retries",
            "",
            "lower",
            "sum",
            "CUDA: num_alloc_retries, allocations that succeeded only after the cache was flushed.",
        ),
        Column(
            "memory_resident_peak",
            "B",
            None,
            "max",
            "Most resident memory of a rank's process so far (VmHWM). It holds freed pages, code and other "
            "libraries, and ranks strategies wrongly: shown beside the allocator's bytes only.",
        ),
    )

    def prepare(self) -> None:
        from distbench.metrics import _cpu_allocator

        _cpu_allocator.build()

    def install(self) -> None:
        from distbench.metrics import _cpu_allocator

        if library := _cpu_allocator.library():
            library.distbench_install()

    def start(self, session: Session) -> Any:
        if session.device.type == "cuda":
            import torch

            for device in _cuda_devices(session):
                torch.cuda.reset_peak_memory_stats(device)
            return sum(torch.cuda.memory_stats(d)["num_alloc_retries"] for d in _cuda_devices(session))
        from distbench.metrics import _cpu_allocator

        if library := _cpu_allocator.library():
            library.distbench_reset_peak()
        return None

    def values(self, session: Session, state: Any) -> Values:
        if session.device.type == "cuda":
            return {**_cuda_values(session, state), "memory_resident_peak": _resident_peak()}
        from distbench.metrics import _cpu_allocator

        library = _cpu_allocator.library()
        if library is None:
            raise Absent("the counting allocator was not built; see the log of the run's preparation")
        return {
            "memory_peak": library.distbench_peak(),
            "memory_reserved_peak": Absent("on CUDA only: a CPU allocator reserves nothing"),
            "memory_alloc_retries": Absent("on CUDA only"),
            "memory_resident_peak": _resident_peak(),
        }


def _cuda_values(session: Session, retries_before: int) -> Values:
    import torch

    stats = [torch.cuda.memory_stats(device) for device in _cuda_devices(session)]
    return {
        "memory_peak": max(device["allocated_bytes.all.peak"] for device in stats),
        "memory_reserved_peak": max(device["reserved_bytes.all.peak"] for device in stats),
        "memory_alloc_retries": sum(device["num_alloc_retries"] for device in stats) - retries_before,
    }


def _cuda_devices(session: Session) -> list[Any]:
    """Return the devices that this process drives: its own, or with nn.DataParallel all of them."""
    if session.world_size < session.case.world_size:
        return list(range(session.case.world_size))
    return [session.device]


def _resident_peak() -> int:
    from pathlib import Path

    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise Absent("/proc/self/status has no VmHWM")
