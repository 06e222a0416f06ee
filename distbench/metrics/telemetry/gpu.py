"""GPU telemetry from NVML: load, power, energy, clocks, temperature, memory, and throttling.

NVML knows whole GPUs and numbers them by PCI bus; CUDA numbers those in ``CUDA_VISIBLE_DEVICES``, by speed
unless ``CUDA_DEVICE_ORDER`` says otherwise. If the two can't be shown to agree, or a MIG instance is only a
part of a GPU, a number is absent rather than that of a different device.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from distbench.metrics.base import NotAvailable, value_or_reason
from distbench.metrics.telemetry.host import own_processes
from distbench.metrics.telemetry.sampler import Row
from distbench.metrics.telemetry.windows import (
    Window,
    counter_increase,
    mean_in_window,
    samples_in,
    samples_with,
)

# nvml.h, nvmlClocksEventReasons: the clocks are lowered to protect the hardware
_SLOWDOWN = 0x08 | 0x20 | 0x40 | 0x80  # HwSlowdown, SwThermal, HwThermal, HwPowerBrake
# the clocks are lowered to keep to the power limit: usual at full load
_POWER_CAP = 0x04


class GpuReader:
    """Reader of the GPUs of *world_size* ranks, one each, through *nvml*, a module like ``pynvml``."""

    name = "gpu"

    def __init__(
        self,
        nvml: Any,
        world_size: int,
        environment: Mapping[str, str],
        proc: Path = Path("/proc"),
        siblings: Sequence[int] = (),
    ) -> None:
        self._nvml, self._world_size = nvml, world_size
        self._environment, self._proc, self._siblings = environment, proc, siblings
        self._handles: list[Any] = []
        self._missing: set[tuple[int, str]] = set()

    def read(self) -> list[Row]:
        try:
            if not self._handles:
                self._nvml.nvmlInit()
                self._handles = nvml_handles(self._nvml, self._world_size, self._environment)
            own = self._own()
            return [row for i, handle in enumerate(self._handles) for row in self._device(i, handle, own)]
        except self._nvml.NVMLError as error:
            raise NotAvailable(f"NVML: {error}") from error

    def close(self) -> list[Row]:
        if self._handles:
            self._nvml.nvmlShutdown()
        return []

    def _own(self) -> Collection[int]:
        try:
            return own_processes(self._proc, self._siblings)
        except FileNotFoundError:
            # only the owners of memory are unknown then
            return ()

    def _device(self, i: int, handle: Any, own: Collection[int]) -> list[Row]:
        row: Row = {"device": i}
        missing = []
        for name, read in self._readings(handle, own).items():
            try:
                row[name] = read()
            except (self._nvml.NVMLError, NotAvailable) as error:
                if (i, name) not in self._missing:
                    self._missing.add((i, name))
                    whose = "" if isinstance(error, NotAvailable) else "NVML: "
                    missing.append({"device": i, "absent": name, "reason": f"GPU {i}: {whose}{error}"})
        return [row, *missing]

    def _readings(self, handle: Any, own: Collection[int]) -> dict[str, Callable[[], Any]]:
        nvml = self._nvml
        # each call takes a lock of the driver: a value that two readings need is read once
        reasons = functools.cache(lambda: _reasons(nvml, handle))
        processes = functools.cache(lambda: _processes(nvml, handle, own))
        return {
            "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
            "sm_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "slowdown": lambda: int(bool(reasons() & _SLOWDOWN)),
            "power_cap": lambda: int(bool(reasons() & _POWER_CAP)),
            "own_memory_bytes": lambda: sum(processes()[0]),
            "others": lambda: processes()[1],
        }


def nvml_handles(nvml: Any, world_size: int, environment: Mapping[str, str]) -> list[Any]:
    """NVML handles of the GPUs that CUDA numbers 0 to *world_size* - 1.

    Raises:
        NotAvailable: that can't be determined, or NVML can't see all of them.
    """
    total = nvml.nvmlDeviceGetCount()
    text = environment.get("CUDA_VISIBLE_DEVICES")
    visible = [str(i) for i in range(total)] if text is None else [part.strip() for part in text.split(",")]
    wanted = visible[:world_size]
    if len(wanted) < world_size:
        raise NotAvailable(f"{world_size} ranks, but NVML sees only {len(wanted)} GPUs on this machine")
    if any(entry.startswith("MIG") for entry in wanted):
        raise NotAvailable("CUDA_VISIBLE_DEVICES lists MIG instances, but NVML reports only whole GPUs")
    every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(total)]
    by_speed = environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    numbered = by_speed and any(entry.isdigit() for entry in wanted)
    if numbered and len({nvml.nvmlDeviceGetName(gpu) for gpu in every}) > 1:
        raise NotAvailable(
            "the machine has different GPU models, which CUDA orders by speed and NVML by bus; set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    chosen = [_handle(nvml, entry, every) for entry in wanted]
    if any(_is_mig(nvml, handle) for handle in chosen):
        raise NotAvailable("a GPU is partitioned by MIG, but NVML reports only whole GPUs")
    return chosen


def _handle(nvml: Any, entry: str, every: Sequence[Any]) -> Any:
    """Device that CUDA knows as *entry*: its number, or the start of its UUID."""
    if entry.isdigit() and int(entry) < len(every):
        return every[int(entry)]
    is_uuid = entry.startswith("GPU-")
    named = [gpu for gpu in every if is_uuid and nvml.nvmlDeviceGetUUID(gpu).startswith(entry)]
    if len(named) != 1:
        raise NotAvailable(
            f"CUDA_VISIBLE_DEVICES: {entry!r} names {len(named)} of the {len(every)} GPUs of NVML"
        )
    return named[0]


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        # most GPUs do not support MIG
        return False


def _reasons(nvml: Any, handle: Any) -> int:
    """Bits of NVML's clock event reasons; drivers before 535 have only the older name."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _processes(nvml: Any, handle: Any, own: Collection[int]) -> tuple[list[int], int]:
    """Bytes of each process in *own* that computes on the device, and the number of other processes."""
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    used = [process.usedGpuMemory for process in processes if process.pid in own]
    if not used or None in used:
        # a rank that has not used CUDA yet is not listed either
        raise NotAvailable(
            "NVML lists no process of this trial, as in a container with a separate process namespace"
        )
    return used, len(processes) - len(used)


# NVML updates its energy counter about ten to fifty times a second
_MIN_ENERGY_S = 1.0


def gpu_values(rows: Sequence[Row], window: Window, tokens: float | None) -> dict[str, float | NotAvailable]:
    """Columns of the GPUs; *tokens*: consumed by all ranks in *window*, None if unknown.

    Raises:
        NotAvailable: NVML reported no GPU.
    """
    devices = _devices(rows)
    numbers: dict[str, Callable[[], float]] = {
        "gpu_utilisation": lambda: statistics.fmean(_means(devices, "utilisation", window)),
        "gpu_power": lambda: math.fsum(_means(devices, "power_w", window)),
        "energy_per_token": lambda: _energy(devices, window, tokens),
        "gpu_sm_clock": lambda: min(_means(devices, "sm_clock_hz", window)),
        "gpu_temperature": lambda: max(_maxima(devices, "temperature_c", window)),
        "gpu_memory_used": lambda: max(_maxima(devices, "memory_bytes", window)),
        "gpu_memory_own": lambda: max(_maxima(devices, "own_memory_bytes", window)),
        "gpu_other_processes": lambda: max(_maxima(devices, "others", window)),
        "gpu_throttle": lambda: max(_means(devices, "slowdown", window)),
        "gpu_power_cap": lambda: max(_means(devices, "power_cap", window)),
    }
    return {name: value_or_reason(number) for name, number in numbers.items()}


def _devices(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of each GPU, including those that explain a missing reading."""
    count = 1 + max((row["device"] for row in rows if row.get("device") is not None), default=-1)
    if not count:
        reasons = (row["reason"] for row in rows if row.get("absent") == GpuReader.name)
        raise NotAvailable(next(reasons, "no sample includes a GPU"))
    return [[row for row in rows if row.get("device") == i] for i in range(count)]


def _means(devices: Sequence[Sequence[Row]], name: str, window: Window) -> list[float]:
    return [mean_in_window(rows, name, window) for rows in devices]


def _maxima(devices: Sequence[Sequence[Row]], name: str, window: Window) -> list[float]:
    return [max(row[name] for row in samples_in(samples_with(rows, name), window)) for rows in devices]


def _energy(devices: Sequence[Sequence[Row]], window: Window, tokens: float | None) -> float:
    if not tokens:
        raise NotAvailable("the number of tokens in the timed window is unknown")
    length = window[1] - window[0]
    if length < _MIN_ENERGY_S:
        raise NotAvailable(
            f"the timed window of {length:.2f} s is too short for NVML's energy counter; at least "
            f"{_MIN_ENERGY_S:g} s are needed"
        )
    return math.fsum(counter_increase(rows, "energy_j", window) for rows in devices) / tokens
