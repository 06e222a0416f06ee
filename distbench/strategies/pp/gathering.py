"""Tensors of all stages on the first rank, one after another: what a stage has no other stage has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from distbench.strategies.pp.line import Line
from distbench.strategies.torch_engine import gathering
from distbench.strategies.torch_engine.gathering import Key
from distbench.strategies.torch_engine.reading import full


def gathered(
    tensors: Mapping[Key, torch.Tensor], device: torch.device, line: Line
) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield on the first rank of *line* the *tensors* of all of its ranks, whole, by their keys, on *device*.

    Elsewhere nothing. A collective call; see ``torch_engine.gathering``. Ranks of other lines have shards.
    """
    kinds = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
    return gathering.gathered(kinds, lambda key: full(tensors[key]), device, line.group)
