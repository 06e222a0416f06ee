"""Copies of ranks that train apart for some steps: their mean is what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def mean_over_ranks(own: torch.Tensor) -> torch.Tensor:
    """Mean of *own* over all ranks. A collective call."""
    total = own.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def mean_of_replicas(
    own: Iterable[tuple[str, torch.Tensor]], *, are_equal: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Named tensors of a rank as they are where those of all ranks are equal, or else their means.

    A collective call. A mean of copies that should be equal would hide that they are not.
    """
    for name, each in own:
        yield name, each if are_equal else mean_over_ranks(each)


@contextmanager
def averaged_parameters(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """The *parameters* of all ranks are their means here. A collective call."""
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
