"""The loss that most workloads share."""

from __future__ import annotations

import torch
from torch.nn import functional


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in fp32 of *logits* (..., classes) against *labels* (...)."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())
