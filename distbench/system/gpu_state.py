"""Health of a host's GPUs, from NVML (https://docs.nvidia.com/deploy/nvml-api/)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from distbench.system.visible_gpus import NO_GPU_ERRORS

# nvml.h, nvmlClocksEventReasons: the clocks are lowered to save the hardware
_THROTTLE_REASONS = 0x08 | 0x20 | 0x40 | 0x80  # HwSlowdown, SwThermal, HwThermal, HwPowerBrake
# nvml.h, NVML_NVLINK_MAX_LINKS
_MAX_NVLINKS = 18


@dataclass(frozen=True)
class GpuState:
    """State of one GPU; None: the device or its driver does not report it."""

    name: str
    uuid: str
    uncorrected_errors: int | None
    """Uncorrected ECC errors since the driver was loaded."""
    is_throttled: bool | None
    """True if the clocks are lowered to protect the hardware: heat or power brake."""
    memory_used_bytes: int | None
    process_count: int | None
    """Processes that compute on it."""
    pcie_lanes: int | None
    """Width of the PCIe link."""
    max_pcie_lanes: int | None
    """Maximum width of the link with this device in this host."""
    nvlinks: list[bool]
    """State of each NVLink (True: up); empty: it has none."""


def inspect_gpus(nvml: Any) -> tuple[list[GpuState], str]:
    """State of all GPUs of this host, and the reason why it is unknown; both empty: it has none.

    Args:
        nvml: The module ``pynvml``, or one like it.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], "" if type(error).__name__ in NO_GPU_ERRORS else f"NVML: {error}"
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [_state(nvml, handle) for handle in handles], ""
    except nvml.NVMLError as error:
        return [], f"NVML: {error}"
    finally:
        nvml.nvmlShutdown()


def _state(nvml: Any, gpu: Any) -> GpuState:
    def told(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except nvml.NVMLError:
            return None

    reasons = told(partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu))
    running = told(partial(nvml.nvmlDeviceGetComputeRunningProcesses, gpu))
    memory = told(partial(nvml.nvmlDeviceGetMemoryInfo, gpu))
    links = [told(partial(nvml.nvmlDeviceGetNvLinkState, gpu, link)) for link in range(_MAX_NVLINKS)]
    return GpuState(
        name=nvml.nvmlDeviceGetName(gpu),
        uuid=nvml.nvmlDeviceGetUUID(gpu),
        uncorrected_errors=told(
            partial(
                nvml.nvmlDeviceGetTotalEccErrors,
                gpu,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            )
        ),
        is_throttled=None if reasons is None else bool(reasons & _THROTTLE_REASONS),
        memory_used_bytes=memory and memory.used,
        process_count=None if running is None else len(running),
        pcie_lanes=told(partial(nvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)),
        max_pcie_lanes=told(partial(nvml.nvmlDeviceGetMaxPcieLinkWidth, gpu)),
        nvlinks=[bool(link) for link in links if link is not None],
    )
