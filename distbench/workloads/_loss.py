"""The loss that most workloads share."""

from __future__ import annotations

import torch
from torch.nn import functional


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of *logits* (..., classes) against *labels* (...), in fp32 at least."""
    return functional.cross_entropy(at_least_fp32(logits).flatten(0, -2), labels.flatten())


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor*, in fp32 if its own dtype is a shorter one."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
