"""GPUs that CUDA shows to the processes of this machine, from NVML.

NVML numbers whole GPUs by bus; CUDA numbers those in ``CUDA_VISIBLE_DEVICES``, by speed unless
``CUDA_DEVICE_ORDER`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

NO_GPU_ERRORS = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
"""Errors of NVML on a host without a GPU that torch could use; with any other one it may have some."""

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_MIG = "NVML reports only whole GPUs, and a MIG instance is a part of one"
_BY_SPEED = "CUDA numbers different models by speed and NVML by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID"


@dataclass(frozen=True)
class VisibleGpus:
    """GPUs, or MIG instances, that processes may use."""

    names: tuple[str, ...] = ()
    """Names of all GPUs of the machine, by bus."""
    count: int = 0
    """Number of visible ones."""
    memory: tuple[int, ...] = ()
    """Bytes of each visible one, in any order; empty: unknown."""
    capabilities: tuple[float, ...] = ()
    """Compute capability of each visible one, in any order; empty: unknown."""
    unknown: str = ""
    """Reason why memory or compute capabilities are unknown; empty: they are known."""
    error: str = ""
    """Error of NVML that hides GPUs; empty: there is none."""


def find_visible_gpus(nvml: Any, environment: Mapping[str, str]) -> VisibleGpus:
    """GPUs that are visible to processes with the variables *environment*.

    Args:
        nvml: The module ``pynvml``, or one like it.
    """
    place = ""
    try:
        nvml.nvmlInit()
        handles = []
        for index in range(nvml.nvmlDeviceGetCount()):
            place = f"GPU {index}: "
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        place = ""
        names = tuple(nvml.nvmlDeviceGetName(handle) for handle in handles)
        visible = list(_visible(nvml, handles, environment.get(_VARIABLE)))
    except nvml.NVMLError as error:
        is_none = type(error).__name__ in NO_GPU_ERRORS
        return VisibleGpus(error="" if is_none else f"NVML: {place}{error}")
    found = VisibleGpus(names, len(visible))
    if any(handle is None or _has_mig(nvml, handle) for handle in visible):
        return replace(found, unknown=_MIG)
    if len(visible) < len(handles) and len(set(names)) > 1 and _is_by_speed(environment):
        return replace(found, unknown=_BY_SPEED)
    memory, no_memory = _of_each(nvml, visible, lambda gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total))
    capabilities, no_capability = _of_each(nvml, visible, lambda gpu: _capability(nvml, gpu))
    return replace(found, memory=memory, capabilities=capabilities, unknown=no_memory or no_capability)


def _visible(nvml: Any, gpus: Sequence[Any], chosen: str | None) -> Iterator[Any]:
    """Visible ones of *gpus*, and None for each MIG instance; *chosen* is ``CUDA_VISIBLE_DEVICES``."""
    if chosen is None:
        yield from gpus
        return
    for entry in map(str.strip, chosen.split(",") if gpus else ()):
        # CUDA accepts the beginning of a UUID
        by_uuid = [gpu for gpu in gpus if entry and nvml.nvmlDeviceGetUUID(gpu).startswith(entry)]
        if entry.startswith("MIG-"):
            yield None
        elif entry.isdigit() and int(entry) < len(gpus):
            yield gpus[int(entry)]
        elif entry.startswith("GPU-") and len(by_uuid) == 1:
            yield by_uuid[0]
        else:
            # CUDA ends its list at the first invalid entry
            return


def _is_by_speed(environment: Mapping[str, str]) -> bool:
    """True if CUDA's numbers of the visible GPUs are not those of NVML."""
    is_by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return not is_by_bus and any(each.strip().isdigit() for each in environment[_VARIABLE].split(","))


def _has_mig(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0])
    except nvml.NVMLError:
        # most GPUs do not support MIG
        return False


def _capability(nvml: Any, gpu: Any) -> float:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return float(f"{major}.{minor}")


def _of_each(nvml: Any, gpus: Sequence[Any], ask: Callable[[Any], T]) -> tuple[tuple[T, ...], str]:
    """Answers of *gpus*, or the reason why they are unknown."""
    try:
        return tuple(ask(gpu) for gpu in gpus), ""
    except nvml.NVMLError as error:
        # GPUs that share the memory of the host do not support its query
        return (), f"NVML: {error}"
