"""Inspection of this machine without torch: devices, packages, and facts for records."""

import ctypes.util
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distbench.core.case import Device
from distbench.core.errors import InfrastructureError
from distbench.core.machine import Machine
from distbench.system import cgroup_memory
from distbench.system.cache import cache_folder
from distbench.system.cpus import core_count, cpu_quota
from distbench.system.gpu_limits import gpu_facts
from distbench.system.gpu_types import GpuCluster
from distbench.system.visible_gpus import VisibleGpus, find_visible_gpus

RUN_ID_VARIABLE = "DISTBENCH_RUN_ID"
"""Environment variable that every process of a run carries."""

CUPY_DISTRIBUTIONS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
"""Distributions of cupy, by CUDA version."""

_PACKAGES = (
    *("torch", "torchao", "deepspeed", "transformers", "accelerate", "pytorch-optimizer"),
    *("lightning-fabric", "greenlet"),
    *("scikit-learn", "numpy", "safetensors"),
    *CUPY_DISTRIBUTIONS,
)

_LATER_VERSION = "9999"
"""Version of a package on a machine that is not at hand, if this one does not have it."""

# Exact names only: a prefix such as NCCL_ or TORCH_ guarantees nothing about the value, and dumps of the
# environment in published records have leaked keys before.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "DS_ACCELERATOR",
    "DS_PIN_MEMORY_BACKEND",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
)
_CPUINFO = Path("/proc/cpuinfo")
_ROCM_DEVICE = Path("/dev/kfd")
"""Device file of AMD's driver for computing."""


def detect_machine(device: str = "auto") -> Machine:
    """Detect this machine, for a suite whose ``device`` is *device* (auto, cpu or cuda).

    Raises:
        InfrastructureError: *device* is not cpu, and the GPUs that there may be can't be used.
    """
    gpus = _visible_gpus()
    if gpus.error and device != "cpu":
        raise InfrastructureError(gpus.error, "see what nvidia-smi says, or use device: cpu")
    chosen: Device = "cuda" if device == "cuda" or (device == "auto" and gpus.count) else "cpu"
    on_gpus = chosen == "cuda"
    return Machine(
        device=chosen,
        devices=gpus.count if on_gpus else core_count(),
        packages=package_versions(),
        has_libaio=ctypes.util.find_library("aio") is not None,
        has_compiler=cxx_compiler() is not None,
        has_ninja=shutil.which("ninja", path=search_path()) is not None,
        device_memory=min(gpus.memory, default=None) if on_gpus else None,
        compute_capability=min(gpus.capabilities, default=None) if on_gpus else None,
        cores=core_count(),
        memory=available_memory(),
    )


def gpu_nodes(nodes: int, gpus_per_node: int) -> Machine:
    """*nodes* nodes that are not at hand, with *gpus_per_node* GPUs each.

    They have what cases need: packages in the versions of this machine, or else in a later one.
    """
    here = detect_machine("cpu")
    return dataclasses.replace(
        here,
        device="cuda",
        devices=nodes * gpus_per_node,
        nodes=nodes,
        memory=None,
        packages={**dict.fromkeys(_PACKAGES, _LATER_VERSION), **here.packages},
        has_libaio=True,
        has_compiler=True,
        has_ninja=True,
    )


def described_machine(cluster: GpuCluster) -> Machine:
    """The machine that *cluster* describes, with what cases need."""
    return dataclasses.replace(
        gpu_nodes(cluster.nodes, cluster.gpus_per_node),
        gpu_type=cluster.gpu.name,
        device_memory=cluster.gpu.memory,
        compute_capability=cluster.gpu.compute_capability,
    )


def available_memory() -> int:
    """Bytes of host memory that processes may use: the machine's total, or the limit of the cgroup."""
    own = cgroup_memory.read_cgroup_memory()
    limit = own.limit_bytes if own else None
    return _total_memory() if limit is None else min(limit, _total_memory())


def free_memory() -> int:
    """Bytes of host memory that are free for processes: on the machine, and below the limit of the cgroup."""
    # the import takes milliseconds, which a process that only imports this module need not spend
    import psutil

    own = cgroup_memory.read_cgroup_memory()
    free = int(psutil.virtual_memory().available)
    return free if own is None or own.free_bytes is None else min(own.free_bytes, free)


def visible_gpu_count() -> int:
    """Number of CUDA devices that ``CUDA_VISIBLE_DEVICES`` leaves visible; 0 without a driver."""
    return _visible_gpus().count


def gpu_error() -> str:
    """Error of the driver that hides the GPUs of this machine; empty: there is none."""
    return _visible_gpus().error


def unchecked_gpus_text() -> str:
    """Reason why no case can be refused for the memory or compute capability of its GPUs; otherwise empty."""
    why = _visible_gpus().unknown
    return f"{why}; cases are not checked against memory and compute capability of the GPUs" if why else ""


def unsupported_gpu_text(rocm_device: Path = _ROCM_DEVICE) -> str:
    """Reason why ranks can't use GPUs that this machine seems to have; otherwise empty."""
    return (
        "AMD GPUs (ROCm) are not supported yet" if rocm_device.exists() and not _visible_gpus().names else ""
    )


def gpu_index(uuid: str) -> int | None:
    """Index of the GPU *uuid* on this machine, as in nvidia-smi; None if the driver does not report it."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError:
        return None


def cxx_compiler() -> list[str] | None:
    """Command of the C++ compiler (``CXX``, otherwise g++ or c++), or None."""
    # CXX may hold options or a wrapper, such as "ccache g++"
    commands = [shlex.split(os.environ["CXX"])] if os.environ.get("CXX") else [["g++"], ["c++"]]
    return next((command for command in commands if command and shutil.which(command[0])), None)


def search_path() -> str:
    """``PATH`` of the worker's processes: as if the environment of this interpreter were activated.

    ``.venv/bin/distbench`` runs without that, and torch then would not find the ninja beside it.
    """
    own, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return path if own in path.split(os.pathsep) else f"{own}{os.pathsep}{path}"


def is_installed(package: str) -> bool:
    """True if Python would find *package*, also one installed in place; it is not imported."""
    return importlib.util.find_spec(package) is not None


def is_inspected(distribution: str) -> bool:
    """True if machines are inspected for *distribution*, so that ``Machine.packages`` decides."""
    return distribution in _PACKAGES


@functools.cache
def is_distribution_installed(distribution: str) -> bool:
    """True if this environment has *distribution*."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install_hint(extra: str, pip: str = "pip") -> str:
    """Instructions to install *extra*; not by the name distbench, which may be another's on an index."""
    return f"in distbench's checkout: {pip} install -e '.[{extra}]'"


@functools.cache
def package_versions() -> dict[str, str]:
    """Relevant installed distributions with their versions."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine_facts() -> dict[str, Any]:
    """Facts about this machine that a run keeps: an allow-list, no host name, no secrets."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cpu_cores": core_count(),
        **({} if (quota := cpu_quota()) is None else {"cpu_quota": quota}),
        "memory_bytes": _total_memory(),
        "gpus": list(_visible_gpus().names),
        "gpu_memory_bytes": list(_visible_gpus().memory),
        "gpu_driver": _gpu_driver(),
        **_gpu_facts(),
        "packages": package_versions(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def ops_folder(
    prefix: str,
    installed: Mapping[str, str],
    device: str,
    cpus: Path = _CPUINFO,
    gpus: VisibleGpus | None = None,
) -> Path:
    """Folder of the C++ ops that are built for *device* by the Python environment at *prefix*.

    Each environment has its own: the compiler's command contains its paths, so two that share a folder
    rebuild each other's ops in the middle of a trial. So has each kind of CPU, and for CUDA each compute
    capability, as ops are built for the local ones.

    Args:
        installed: Versions of the environment's packages.
        gpus: Visible GPUs; None: those of this process.
    """
    versions = "-".join(f"{name}-{installed.get(name, 'none')}" for name in ("torch", "deepspeed"))
    place = hashlib.sha256(f"{prefix}\n{cpu_features(cpus)}".encode()).hexdigest()[:8]
    capabilities = (gpus or _visible_gpus()).capabilities if device == "cuda" else ()
    kind = "-".join([device, *map(str, sorted(set(capabilities)))])
    return cache_folder() / "ops" / f"{versions}-{place}" / kind


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _visible_gpus() -> VisibleGpus:
    # the import takes milliseconds, which a process that only imports this module need not spend
    import pynvml

    return find_visible_gpus(pynvml, os.environ)


def _gpu_driver() -> str | None:
    import pynvml

    try:
        return pynvml.nvmlSystemGetDriverVersion() if _visible_gpus().names else None
    except pynvml.NVMLError:
        return None


def _gpu_facts() -> dict[str, Any]:
    import pynvml

    return gpu_facts(pynvml) if _visible_gpus().names else {}


@functools.cache
def cpu_features(cpus: Path = _CPUINFO) -> str:
    """Model and features of the first CPU, by which ``-march=native`` chooses instructions."""
    first = cpus.read_text().partition("\n\n")[0]
    telling = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in telling)


def _cpu_name() -> str:
    for line in _CPUINFO.read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
