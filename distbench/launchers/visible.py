"""The GPUs that ``CUDA_VISIBLE_DEVICES`` names by UUID, as numbers: DeepSpeed can read nothing else.

(``_get_nvml_gpu_id`` of its accelerator for CUDA, which the build of ZeRO 1 and 2 calls.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices_by_index(nvml: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that say to ranks by number which GPUs *environment* names by UUID.

    Empty: it names none so, or something else than whole GPUs of this machine.

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
    # CUDA takes the begin of a UUID, too
    found = [[i for i, uuid in enumerate(uuids) if uuid.startswith(name)] for name in names]
    if any(len(numbers) != 1 for numbers in found):
        return {}
    # NVML counts by bus; CUDA does only if it is told to
    return {_VISIBLE: ",".join(str(numbers[0]) for numbers in found), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
