"""DeepSpeed's sharding of single parameters, over all ranks or in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.utils import groups
from torch import nn


def parameter_sharder(config: dict[str, Any]) -> Callable[[Iterable[nn.Parameter]], None]:
    """Function that moves parameters to the device and shards them by *config*, one after another.

    ``deepspeed.initialize`` does this to a model that already exists, and ``deepspeed.zero.Init`` to each
    module after its constructor. Under that context many constructors fail: they continue with tensors that
    are already sharded (transformers zeroes the row of a padding token), or copy them.
    """
    init = _sharding_context(config)
    # otherwise a linear layer would keep its gathered weight from the forward pass to the backward pass
    init._enable_mem_efficient_linear()
    convert: Callable[[Iterable[nn.Parameter]], None] = init._convert_to_zero_parameters
    return convert


def _sharding_context(config: dict[str, Any]) -> Any:
    if size := config["zero_optimization"].get("mics_shard_size"):
        # without it, some of DeepSpeed's code takes all ranks for a group, and hangs (found with 0.19.6)
        group, _ = dist.new_subgroups(size)
        return _mics_init()(data_parallel_group=group, config_dict_or_path=config)
    # the groups of hpZ outlive an engine, and DeepSpeed refuses to create them again
    secondary = groups._get_zero_param_intra_parallel_group()
    return deepspeed.zero.Init(config_dict_or_path=config, enabled=True, zero_param_parallel_group=secondary)


def _mics_init() -> Any:
    """DeepSpeed's context of MiCS; with gloo it gathers like MiCS without torch's coalescing.

    gloo raises "Backend gloo does not implement startCoalescing" (0.19.6, torch 2.13).
    """
    base = deepspeed.zero.MiCS_Init
    if dist.get_backend() != "gloo":
        return base

    def converted(self: Any, parameter: Any) -> None:
        super(base, self)._convert_to_deepspeed_param(parameter)
        parameter.comm = self.mics_comm_groups

    return type(base.__name__, (base,), {"_convert_to_deepspeed_param": converted})
