"""Range of the gradients of a step, for fp16: the tensor that overflows first, and those that are 0."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from distbench.strategies.engine import Engine


def gradient_ranges(engine: Engine) -> list[dict[str, Any]]:
    """Rows of the table ``gradient_range``; empty if the engine can't gather gradients.

    The same on every rank. Collective call, between the last ``forward_backward`` of a step and ``step``.
    """
    names, numbers = [], []
    try:
        for name, gradient in engine.full_gradients():
            if gradient.numel():
                names.append(name)
                zero = (gradient == 0).double().mean()
                numbers.append(torch.stack([gradient.abs().max().double(), zero]))
    except NotImplementedError:
        return []
    # rank 0 has them all, the others may have none; this waits for the device only once
    known = torch.stack(numbers).tolist() if numbers else []
    shared: list[Any] = [
        [
            {"tensor": name, "largest": largest if math.isfinite(largest) else None, "zero_share": zero}
            for name, (largest, zero) in zip(names, known, strict=True)
        ]
    ]
    dist.broadcast_object_list(shared, src=0)
    rows: list[dict[str, Any]] = shared[0]
    return rows
