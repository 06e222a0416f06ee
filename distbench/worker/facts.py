"""Facts of the process that measured: versions and device as the worker itself sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from distbench import env


def describe(device: torch.device) -> dict[str, Any]:
    """Return what a record keeps of this rank's surroundings."""
    facts: dict[str, Any] = {
        **env.describe(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "process_threads": len(list(Path("/proc/self/task").iterdir())),
        "backend": torch.distributed.get_backend(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "seed": torch.initial_seed(),
        "attention": _attention(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["tf32"] = torch.backends.cuda.matmul.allow_tf32
    return facts


def _attention() -> list[str]:
    """Return the kernels that scaled dot-product attention may choose from; the flags hold on a CPU too."""
    flags = torch.backends.cuda
    allowed = {
        "flash": flags.flash_sdp_enabled(),
        "memory-efficient": flags.mem_efficient_sdp_enabled(),
        "cudnn": flags.cudnn_sdp_enabled(),
        "math": flags.math_sdp_enabled(),
    }
    return [name for name, is_allowed in allowed.items() if is_allowed]
