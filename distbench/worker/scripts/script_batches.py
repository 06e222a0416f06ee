"""Size of a script's batches, and hashes of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_FIRST_KEYS = ("input_ids", "inputs_embeds", "pixel_values", "inputs")
_MAX_ROWS = 64
_MAX_ROW_ELEMENTS = 4096
_FEW_INTEGERS = 4
"""Integers of a row up to which equal rows are no wonder: labels, or numbers of users."""


@dataclass(frozen=True)
class BatchSize:
    """Samples of a batch, and tokens if its rows are integers."""

    samples: int
    tokens: int | None = None


def batch_tensor(batch: Any) -> torch.Tensor | None:
    """The tensor of *batch* whose first axis is that of samples: the inputs, or the first with an axis."""
    if isinstance(batch, Mapping):
        named = [batch[key] for key in _FIRST_KEYS if key in batch]
        return batch_tensor([*named, *batch.values()])
    return next((tensor for tensor in _tensors(batch) if tensor.dim()), None)


def batch_size(tensor: torch.Tensor) -> BatchSize:
    """Size of the batch whose inputs are *tensor*."""
    is_tokens = tensor.dim() == 2 and not (tensor.is_floating_point() or tensor.is_complex())
    return BatchSize(tensor.shape[0], tensor.numel() if is_tokens else None)


def row_hashes(tensor: torch.Tensor) -> list[str]:
    """Hashes of the first rows of *tensor*; of long rows, of their first elements. None of a few integers."""
    rows = tensor.detach()[:_MAX_ROWS].flatten(1) if tensor.dim() > 1 else tensor.detach()[:_MAX_ROWS, None]
    if not tensor.is_floating_point() and rows.shape[1] <= _FEW_INTEGERS:
        return []
    host = rows[:, :_MAX_ROW_ELEMENTS].contiguous().cpu()
    return [hashlib.blake2b(bytes(row.view(torch.uint8).numpy()), digest_size=8).hexdigest() for row in host]


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, Mapping):
        yield from _tensors([*nested.values()])
    elif isinstance(nested, list | tuple):
        # of other containers of the user, none is iterated: that may use them up
        for part in nested:
            yield from _tensors(part)
    elif hasattr(nested, "items"):
        yield from _tensors(dict(nested.items()))
