"""Findings on one host: limits, space, names, locks and GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.core.units import bytes_text, count_text, duration_text
from distbench.doctor.findings import Finding, Grade
from distbench.system.gpu_state import GpuState
from distbench.system.host_state import HostState

# NCCL keeps buffers of the ranks of a node there; containers have 64 MB unless told otherwise
_LITTLE_SHM = 1 << 30
_LITTLE_LOCKED = 1 << 30
# records of a run are small, checkpoints and traces are not
_LITTLE_DISK, _NO_DISK = 5 << 30, 200 << 20
# gloo and the store have a socket for every other rank, and each rank some files of its own
_FILES, _FILES_A_RANK = 256, 4
# an op takes a minute or two to build
_STALE_S = 15 * 60.0
_LITTLE_GPU = 1 << 30


def of_host(host: HostState, ranks: int, *, where: str = "") -> list[Finding]:
    """What is wrong with *host*, on which ranks of a launch of *ranks* run; *where* it is called so."""
    checks = (_shm(host), _files(host, ranks), _locked(host), _space(host), _locks(host), _gpus(host))
    return [
        Finding(each.check, each.grade, each.what, each.where or where, each.remedy)
        for findings in checks
        for each in findings
    ]


def _shm(host: HostState) -> Iterator[Finding]:
    free = host.shm_free_bytes
    if free is None:
        yield Finding("shared memory", "warning", "there is no /dev/shm", remedy="mount one of several GB")
    elif free < _LITTLE_SHM:
        text = f"{bytes_text(free)} free in /dev/shm; NCCL and data loaders want more"
        remedy = "start the container with --shm-size=8g (Kubernetes: an emptyDir with medium Memory)"
        yield Finding("shared memory", "warning", text, remedy=remedy)


def _files(host: HostState, ranks: int) -> Iterator[Finding]:
    needed = _FILES + _FILES_A_RANK * ranks
    if 0 <= host.open_files < needed:
        text = f"a process may open {host.open_files} files, {count_text(ranks, 'rank')} may need {needed}"
        yield Finding("open files", "warning", text, remedy="ulimit -n 65536 in what starts the ranks")


def _locked(host: HostState) -> Iterator[Finding]:
    if host.infiniband and host.locked_bytes >= 0:
        text = (
            f"a process may lock {bytes_text(host.locked_bytes)}; {', '.join(host.infiniband)} lock buffers"
        )
        grade: Grade = "problem" if host.locked_bytes < _LITTLE_LOCKED else "warning"
        yield Finding("locked memory", grade, text, remedy="ulimit -l unlimited in what starts the ranks")


def _space(host: HostState) -> Iterator[Finding]:
    for folder in host.unwritable:
        yield Finding("disk", "problem", f"{folder} is not writable", remedy="use another --out")
    for folder, free in host.free_bytes.items():
        if free < _LITTLE_DISK:
            grade: Grade = "problem" if free < _NO_DISK else "warning"
            yield Finding(
                "disk",
                grade,
                f"{bytes_text(free)} free for {folder}",
                remedy="make room, or use another folder",
            )


def _locks(host: HostState) -> Iterator[Finding]:
    for lock, age in host.locks.items():
        if age > _STALE_S:
            text = f"{lock} has been there for {duration_text(age)}: a build that was killed left it"
            yield Finding("op locks", "warning", text, remedy=f"if nothing is being built: rm {lock}")


def _gpus(host: HostState) -> Iterator[Finding]:
    if host.gpus_unknown:
        yield Finding("GPUs", "problem", host.gpus_unknown, remedy="see what nvidia-smi says")
    for index, gpu in enumerate(host.gpus):
        for grade, what, remedy in _gpu(gpu):
            yield Finding("GPUs", grade, f"GPU {index} ({gpu.name}) {what}", remedy=remedy)


def _gpu(gpu: GpuState) -> Iterator[tuple[Grade, str, str]]:
    if gpu.uncorrected_errors:
        errors = count_text(gpu.uncorrected_errors, "uncorrected ECC error")
        yield (
            "problem",
            f"has had {errors}",
            "drain the node and reset the GPU; have it replaced if they return",
        )
    if gpu.is_slowed:
        yield (
            "problem",
            "lowers its clocks to save the hardware",
            "see nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        )
    if gpu.processes:
        yield "problem", f"is in use by {count_text(gpu.processes, 'other process')}", "end them: nvidia-smi"
    elif (gpu.memory_used_bytes or 0) > _LITTLE_GPU:
        used = bytes_text(gpu.memory_used_bytes or 0)
        yield (
            "warning",
            f"has {used} in use",
            "nvidia-smi shows by whom; processes of other containers are hidden",
        )
    # the generation of the link falls while a GPU is idle, its width doesn't
    if gpu.lanes and gpu.lanes_most and gpu.lanes < gpu.lanes_most:
        text = f"has {gpu.lanes} of {gpu.lanes_most} PCIe lanes"
        yield "warning", text, "seat it again, or look for a shared slot"
    if gpu.links and not all(gpu.links):
        text = f"has {gpu.links.count(False)} of {len(gpu.links)} NVLinks down"
        yield "problem", text, "see nvidia-smi nvlink --status, and the fabric manager's log"
