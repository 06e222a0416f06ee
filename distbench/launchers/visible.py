"""Convert GPU UUIDs in ``CUDA_VISIBLE_DEVICES`` to indices, which DeepSpeed requires.

(``_get_nvml_gpu_id`` of its accelerator for CUDA, which the build of ZeRO 1 and 2 calls.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices_by_index(nvml: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with GPU indices in place of the UUIDs in *environment*.

    Empty: there are no UUIDs, or they are not all of whole GPUs of this machine.

    Args:
        nvml: The module ``pynvml``, or one like it.
    """
    names = [part.strip() for part in environment.get(_VISIBLE, "").split(",")]
    if not all(name.startswith("GPU-") for name in names):
        return {}
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except nvml.NVMLError:
        return {}
    # CUDA also accepts the beginning of a UUID
    found = [[i for i, uuid in enumerate(uuids) if uuid.startswith(name)] for name in names]
    if any(len(numbers) != 1 for numbers in found):
        return {}
    # NVML counts by bus; CUDA does so only on request
    return {_VISIBLE: ",".join(str(numbers[0]) for numbers in found), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
