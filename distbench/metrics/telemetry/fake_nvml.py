"""A fake of NVML: the functions of ``pynvml`` that are used here, over plain data.

It behaves like the real one: integers in NVML's own units (percent, mW, mJ, MHz, bytes), bits
for the reasons of a clock, and a subclass of ``NVMLError`` for what a device can't do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """Base class of all errors of NVML."""


class NVMLError_NotSupported(NVMLError):
    """The device does not support the call."""


class NVMLError_LibraryNotFound(NVMLError):
    """There is no driver."""


class NVMLError_DriverNotLoaded(NVMLError):
    """The driver is not loaded."""


class NVMLError_FunctionNotFound(NVMLError):
    """The driver is older than the function."""


@dataclass
class FakeGpu:
    """One GPU; None: a reading that the device doesn't support."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-5f2e6c1a-0000-0000-0000-000000000000"
    utilisation: int | None = 97
    """Percent of NVML's last sample period in which a kernel ran."""
    power_mw: int | None = 650_000
    energy: bool = True
    """True if there is an energy counter (from Volta on); it grows with ``power_mw`` and time."""
    sm_clock_mhz: int | None = 1_755
    temperature_c: int | None = 64
    memory_used: int | None = 30 << 30
    memory_total: int | None = 80 << 30
    """Bytes; None: not supported, as where it shares the memory of the host."""
    capability: tuple[int, int] = (9, 0)
    """Major and minor compute capability."""
    lost: bool = False
    """True if it has fallen off the bus."""
    reasons: int | None = 0
    """Bits of nvmlClocksEventReasons."""
    processes: dict[int, int | None] = field(default_factory=dict)
    """Process id -> bytes; None: not reported, as on Windows."""
    mig: bool | None = None
    """True if it is partitioned; None: it does not support MIG."""
    uncorrected_errors: int | None = 0
    """ECC errors since the driver was loaded."""
    lanes: int = 16
    """Width of its PCIe link, out of 16."""
    links: list[bool] = field(default_factory=list)
    """State of each NVLink: True if it is up."""
    power_limit_mw: int | None = 700_000
    """Power limit in mW."""
    ecc: int | None = 1
    """1 if error correction is enabled; None: not supported."""
    path: int = 50
    """Topology level of its path to any other GPU without NVLinks."""


class FakeNvml:
    """Fake of the module ``pynvml`` on a machine with *gpus*."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound

    def __init__(self, *gpus: FakeGpu, init_error: str | Exception = "", old_driver: bool = False) -> None:
        """Make nvmlInit fail with *init_error*, or provide only the older names (*old_driver*)."""
        self._gpus, self._init_error, self._old_driver = gpus, init_error, old_driver
        self._began = time.monotonic()
        self.opened = 0
        """Number of nvmlInit calls without nvmlShutdown."""

    def nvmlInit(self) -> None:
        if self._init_error:
            error = self._init_error
            raise NVMLError(error) if isinstance(error, str) else error
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.00"

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self._gpus[index].lost:
            raise NVMLError("GPU is lost")
        return self._gpus[index]

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        return handle.uuid

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        return SimpleNamespace(gpu=_supported(handle.utilisation), memory=0)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        return _supported(handle.power_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:
        power = _supported(handle.power_mw if handle.energy else None)
        return int(power * (time.monotonic() - self._began))

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, kind: int) -> int:
        return _supported(handle.sm_clock_mhz if kind == self.NVML_CLOCK_SM else None)

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        return _supported(handle.temperature_c if sensor == self.NVML_TEMPERATURE_GPU else None)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> Any:
        return SimpleNamespace(used=_supported(handle.memory_used), total=_supported(handle.memory_total))

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        if self._old_driver:
            raise NVMLError_FunctionNotFound("Function Not Found")
        return _supported(handle.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:
        return _supported(handle.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()]

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, kind: int, counter: int) -> int:
        if kind == self.NVML_MEMORY_ERROR_TYPE_CORRECTED:
            return 0
        is_known = (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        return _supported(handle.uncorrected_errors if is_known else None)

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeGpu) -> int:
        return _supported(handle.power_limit_mw)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: FakeGpu) -> int:
        return 700_000

    def nvmlDeviceGetMaxClockInfo(self, handle: FakeGpu, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1_980, self.NVML_CLOCK_MEM: 2_619}[kind]

    def nvmlDeviceGetEccMode(self, handle: FakeGpu) -> list[int]:
        return [_supported(handle.ecc)] * 2

    def nvmlDeviceGetPersistenceMode(self, handle: FakeGpu) -> int:
        return 1

    def nvmlDeviceGetP2PStatus(self, handle: FakeGpu, other: FakeGpu, index: int) -> int:
        # NVML_P2P_STATUS_OK, or a status for a missing link
        return 0 if any(handle.links) and any(other.links) else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, handle: FakeGpu, other: FakeGpu) -> int:
        return max(handle.path, other.path)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeGpu) -> int:
        return handle.lanes

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: FakeGpu) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: FakeGpu, link: int) -> int:
        return _supported(int(handle.links[link]) if link < len(handle.links) else None)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        return [_supported(None if handle.mig is None else int(handle.mig)), 0]


def _supported(reading: int | None) -> int:
    if reading is None:
        raise NVMLError_NotSupported("Not Supported")
    return reading
