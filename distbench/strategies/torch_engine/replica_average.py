"""Average replicas that diverge between synchronizations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def mean_over_ranks(own: torch.Tensor) -> torch.Tensor:
    """Mean of *own* over all ranks. Collective call."""
    total = own.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def mean_of_replicas(
    own: Iterable[tuple[str, torch.Tensor]], *, are_equal: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Named tensors of a rank, unchanged if those of all ranks are equal, otherwise their means.

    Collective call. A mean of copies that should be equal would hide that they are not.
    """
    for name, each in own:
        yield name, each if are_equal else mean_over_ranks(each)


@contextmanager
def averaged_parameters(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Replace *parameters* on all ranks by their means inside the context. Collective call."""
    mine = list(parameters)
    own = [parameter.detach().clone() for parameter in mine]
    _copy_values(mine, [mean_over_ranks(each) for each in own])
    try:
        yield
    finally:
        _copy_values(mine, own)


@torch.no_grad()
def _copy_values(parameters: list[nn.Parameter], values: list[torch.Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
