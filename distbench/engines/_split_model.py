"""Tensor parallelism of transformers in a rank, for the frameworks that train a model that it has split."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from accelerate.parallelism_config import ParallelismConfig
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from distbench.core.errors import Mismatch
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine.modules import prepare_module
from distbench.strategies.tp.engine import TensorParallelEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class AnyDeviceParallelism(ParallelismConfig):  # type: ignore[misc]
    """Sizes of a split, without the check by which Accelerate (1.15) refuses them on CPUs.

    Otherwise it treats a split model on CPUs as on GPUs: it does not wrap it in DDP, and its ranks get the
    same rows.
    """

    def _validate_accelerator(self, accelerator: Any) -> None:
        """Accept *accelerator*: its number of processes is checked for each framework."""


class SplitModelEngine(TensorParallelEngine):
    """A model of transformers that is split by its own plan: norms stay plain tensors on every rank."""

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        return group_by_mesh(super().make_optimizer(layers))

    def _place_gradients(self) -> None:
        """Leave gradients as they are: that of a split embedding is whole, and the optimizer converts it."""


def split_model(context: RankContext) -> tuple[Any, list[nn.Module]]:
    """Module of the case with its weights, its attribute ``model`` split over all ranks; and its layers.

    transformers splits it as ``from_pretrained(distributed_config=...)`` does: before weights are loaded, of
    which each rank initializes only its part.

    Raises:
        Mismatch: transformers chose other devices than those of the ranks.
    """
    ranks, master = context.world_size, DTYPES[context.case.precision.master]
    module: Any = weights.cast(weights.meta_module(context.workload), master)
    tied = weights.tied_groups(module)
    # in transformers a plan names each of them, and from_pretrained ties them afterwards
    for _, *others in tied:
        for owner, name in others:
            setattr(owner, name, nn.Parameter(torch.empty_like(getattr(owner, name))))
    config, _, meshes = module.model.prepare_distribute_model(DistributedConfig(tp_size=ranks))
    module.model = module.model.maybe_distribute_model(module.model, config, meshes)
    weights.retie(module, tied)
    found = sorted({each.device_mesh.device_type for each in _split_tensors(module)})
    if found != [context.device.type]:
        raise Mismatch(
            f"transformers: expected tensors split over {context.device.type}, found "
            f"{', '.join(found) or 'none that is split'}"
        )
    weights.materialise(module, context.device)
    weights.load_into(module, context.weights_file)
    return module, prepare_module(context, module)


def group_by_mesh(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """*optimizer* with a group for the split tensors, and one for the others, as the Trainer makes them.

    A kernel for many tensors takes no mixture of both.
    """
    groups = []
    for group in optimizer.param_groups:
        by_mesh: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            by_mesh[getattr(parameter, "device_mesh", None)].append(parameter)
        groups += [{**group, "params": parameters} for parameters in by_mesh.values()]
    optimizer.param_groups[:] = groups
    return optimizer


def _split_tensors(module: nn.Module) -> list[DTensor]:
    return [parameter for parameter in module.parameters() if isinstance(parameter, DTensor)]
