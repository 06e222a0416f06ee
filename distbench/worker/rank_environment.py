"""Facts about a rank's process and device, for a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distbench.metrics.utilisation.matmul import cudnn_precisions, fp32_precision
from distbench.system.machine import gpu_index, machine_facts

# kernels that scaled dot-product attention may choose from; the flags apply to CPUs too
_ATTENTION_KERNELS = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


def device_facts(device: torch.device) -> dict[str, Any]:
    """Facts about *device* for a record (``RankDevice``)."""
    if device.type == "cpu":
        return {"kind": "cpu"}
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return {"kind": "cuda", "index": gpu_index(uuid), "uuid": uuid}


def rank_environment(device: torch.device) -> dict[str, Any]:
    """Versions and device of this rank, for the record."""
    facts: dict[str, Any] = {
        **machine_facts(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "process_threads": len(list(Path("/proc/self/task").iterdir())),
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": fp32_precision(device),
        "seed": torch.initial_seed(),
        "attention": [name for name, is_allowed in _ATTENTION_KERNELS.items() if is_allowed()],
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts |= cudnn_precisions()
        kinds = ("matmul_precision", "convolution_precision", "rnn_precision")
        facts["tf32"] = any(facts[kind] == "high" for kind in kinds)
    return facts
