"""Findings on one host: limits, space, names, locks and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from distbench.core.units import format_bytes, format_count, format_duration
from distbench.system.gpu_state import GpuState
from distbench.system.host_state import HostState

Severity = Literal["ok", "warning", "problem"]
"""A problem stops runs or makes their numbers wrong; a warning may."""


@dataclass(frozen=True)
class Diagnosis:
    """One finding."""

    check: str
    """Subject of the check: ``nodes``, ``clock``, ``links``, ..."""
    grade: Severity
    what: str
    where: str = ""
    """Node or link; empty: all of them."""
    remedy: str = ""
    """Advice; empty where all is well."""


# NCCL keeps buffers of the ranks of a node there; containers have 64 MB by default
_MIN_SHM = 1 << 30
_LITTLE_LOCKED = 1 << 30
# records of a run are small, checkpoints and traces are not
_LOW_DISK, _MIN_DISK = 5 << 30, 200 << 20
# gloo and the store have a socket for every other rank, and each rank has some files of its own
_BASE_FILES, _FILES_PER_RANK = 256, 4
# an op takes a minute or two to build
_STALE_LOCK_S = 15 * 60.0
_IDLE_GPU_MEMORY = 1 << 30


def check_host(host: HostState, ranks: int, *, where: str = "") -> list[Diagnosis]:
    """Check one *host* that runs some of *ranks* ranks; *where* is its name in findings."""
    checks = (
        _check_shared_memory(host),
        _check_open_files(host, ranks),
        _check_locked_memory(host),
        _check_disk(host),
        _check_build_locks(host),
        _check_gpus(host),
    )
    return [
        Diagnosis(each.check, each.grade, each.what, each.where or where, each.remedy)
        for findings in checks
        for each in findings
    ]


def _check_shared_memory(host: HostState) -> Iterator[Diagnosis]:
    free = host.shm_free_bytes
    if free is None:
        yield Diagnosis("shared memory", "warning", "there is no /dev/shm", remedy="mount one of several GB")
    elif free < _MIN_SHM:
        text = f"{format_bytes(free)} free in /dev/shm; NCCL and data loaders need more"
        remedy = "start the container with --shm-size=8g (Kubernetes: an emptyDir with medium Memory)"
        yield Diagnosis("shared memory", "warning", text, remedy=remedy)


def _check_open_files(host: HostState, ranks: int) -> Iterator[Diagnosis]:
    needed = _BASE_FILES + _FILES_PER_RANK * ranks
    if 0 <= host.max_open_files < needed:
        text = (
            f"a process may open {host.max_open_files} files, {format_count(ranks, 'rank')} may need {needed}"
        )
        yield Diagnosis("open files", "warning", text, remedy="run ulimit -n 65536 before the ranks start")


def _check_locked_memory(host: HostState) -> Iterator[Diagnosis]:
    if host.infiniband_devices and host.max_locked_bytes >= 0:
        devices = ", ".join(host.infiniband_devices)
        text = f"locked memory is limited to {format_bytes(host.max_locked_bytes)}; {devices} lock buffers"
        grade: Severity = "problem" if host.max_locked_bytes < _LITTLE_LOCKED else "warning"
        yield Diagnosis("locked memory", grade, text, remedy="run ulimit -l unlimited before the ranks start")


def _check_disk(host: HostState) -> Iterator[Diagnosis]:
    for folder in host.unwritable_folders:
        yield Diagnosis("disk", "problem", f"{folder} is not writable", remedy="use another --out")
    for folder, free in host.free_bytes.items():
        if free < _LOW_DISK:
            grade: Severity = "problem" if free < _MIN_DISK else "warning"
            yield Diagnosis(
                "disk",
                grade,
                f"{format_bytes(free)} free for {folder}",
                remedy="free some space, or use another folder",
            )


def _check_build_locks(host: HostState) -> Iterator[Diagnosis]:
    for lock, age in host.build_locks.items():
        if age > _STALE_LOCK_S:
            text = f"{lock} is {format_duration(age)} old: a killed build left it"
            yield Diagnosis("op locks", "warning", text, remedy=f"if nothing is being built: rm {lock}")


def _check_gpus(host: HostState) -> Iterator[Diagnosis]:
    if host.gpu_error:
        yield Diagnosis("GPUs", "problem", host.gpu_error, remedy="check the output of nvidia-smi")
    for index, gpu in enumerate(host.gpus):
        for grade, what, remedy in _gpu_problems(gpu):
            yield Diagnosis("GPUs", grade, f"GPU {index} ({gpu.name}) {what}", remedy=remedy)


def _gpu_problems(gpu: GpuState) -> Iterator[tuple[Severity, str, str]]:
    if gpu.uncorrected_errors:
        errors = format_count(gpu.uncorrected_errors, "uncorrected ECC error")
        yield (
            "problem",
            f"has had {errors}",
            "drain the node and reset the GPU; have it replaced if they return",
        )
    if gpu.is_throttled:
        yield (
            "problem",
            "lowers its clocks to save the hardware",
            "see nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        )
    if gpu.process_count:
        yield (
            "problem",
            f"is in use by {format_count(gpu.process_count, 'other process')}",
            "end them: nvidia-smi",
        )
    elif (gpu.memory_used_bytes or 0) > _IDLE_GPU_MEMORY:
        used = format_bytes(gpu.memory_used_bytes or 0)
        yield (
            "warning",
            f"has {used} in use",
            "nvidia-smi shows the processes, except those of other containers",
        )
    # the generation of the link falls while a GPU is idle, its width doesn't
    if gpu.pcie_lanes and gpu.max_pcie_lanes and gpu.pcie_lanes < gpu.max_pcie_lanes:
        text = f"has {gpu.pcie_lanes} of {gpu.max_pcie_lanes} PCIe lanes"
        yield "warning", text, "reseat it, or check for a shared slot"
    if gpu.nvlinks and not all(gpu.nvlinks):
        text = f"has {gpu.nvlinks.count(False)} of {len(gpu.nvlinks)} NVLinks down"
        yield "problem", text, "see nvidia-smi nvlink --status, and the fabric manager's log"
