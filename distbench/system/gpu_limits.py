"""Facts from NVML that affect the speed of a machine's GPUs: limits, clocks, errors and links.

https://docs.nvidia.com/deploy/nvml-api/. A fact that a device or its driver does not report is absent, with
NVML's reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

# nvml.h, nvmlGpuTopologyLevel_t: the shortest path between two GPUs, with the names of nvidia-smi topo
_PCIE_PATHS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MEGA = 1e6


def gpu_facts(nvml: Any) -> dict[str, Any]:
    """Facts ``gpu_states`` of each GPU and ``gpu_links`` of pairs (``0-1``: ``NVLink`` or the PCIe path).

    Powers are in W, clocks in Hz; ``absent`` of a state has the reasons for missing facts. Empty without a
    driver.

    Args:
        nvml: The module ``pynvml``, or one like it.
    """
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return {}
    pairs = itertools.combinations(enumerate(handles), 2)
    return {
        "gpu_states": [_state(nvml, handle) for handle in handles],
        "gpu_links": {f"{i}-{j}": _link(nvml, one, other) for (i, one), (j, other) in pairs},
    }


def lowered_power_limits(facts: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
    """GPUs with a power limit below its default, in the *facts* of a record: index -> both, in W."""
    found = {}
    states = facts.get("gpu_states")
    for i, state in enumerate(states if isinstance(states, list) else []):
        limits = state if isinstance(state, dict) else {}
        limit, usual = limits.get("power_limit_w"), limits.get("power_limit_default_w")
        if isinstance(limit, float | int) and isinstance(usual, float | int) and limit < usual:
            found[i] = (limit, usual)
    return found


def _state(nvml: Any, gpu: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    absent = {}
    for name, read in _readings(nvml, gpu).items():
        try:
            state[name] = read()
        except nvml.NVMLError as error:
            absent[name] = f"NVML: {error}"
    return {**state, **({"absent": absent} if absent else {})}


def _readings(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    def errors(kind: int) -> Callable[[], int]:
        return partial(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC)

    return {
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
        "power_limit_default_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
        "sm_clock_most_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * _MEGA,
        "memory_clock_most_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM) * _MEGA,
        "has_ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        # since the driver was loaded
        "corrected_errors": errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "uncorrected_errors": errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "is_persistent": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "pcie_lanes": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    }


def _link(nvml: Any, one: Any, other: Any) -> str:
    """Connection between two GPUs."""
    try:
        if (
            nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
        ):
            return "NVLink"
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
        return f"PCIe ({_PCIE_PATHS.get(level, f'level {level}')})"
    except nvml.NVMLError as error:
        return f"unknown: NVML: {error}"
