"""Engines whose steps Lightning Fabric takes, in the worker."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy as FabricStrategy
from torch import nn

from distbench.core.errors import Mismatch
from distbench.strategies.base import Batch, RankContext, Strategy, UnsupportedCase
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.ddp.engine import DdpEngine, ddp_arguments, reduce_in_dtype
from distbench.strategies.engine import Engine
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.fsdp.fsdp2 import Fsdp2Engine, shard_module, unsharded_module
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.modules import load_plain_module

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


class FabricSteps(TorchEngine):
    """Steps of Fabric on a module that it has set up; a mix-in for engines that define the rest."""

    def use_fabric(self, fabric: Fabric, module: Any) -> None:
        """Take steps with *fabric* on *module*, its wrapper of the engine's module."""
        self._fabric, self._fabric_module = fabric, module
        self._fabric_optimizer: Any = fabric.setup_optimizers(self._optimizer)
        mean = self._loss

        def loss(_: nn.Module, batch: Batch) -> torch.Tensor:
            return mean(module, batch)

        self._loss = loss

    def clip(self, limit: float) -> None:
        # norms that are not finite are results, as with other engines
        self._fabric.clip_gradients(
            self._fabric_module, self._fabric_optimizer, max_norm=limit, error_if_nonfinite=False
        )

    def _backward(self, loss: torch.Tensor) -> None:
        self._fabric.backward(loss if self._divisor == 1 else loss / self._divisor)

    def _step_optimizer(self) -> None:
        self._fabric_optimizer.step()

    def _without_sync(self, last: bool) -> AbstractContextManager[Any]:
        return self._fabric.no_backward_sync(self._fabric_module, enabled=not last)


class FabricDdpEngine(FabricSteps, DdpEngine):
    """DDP that Fabric wraps, reduces and updates."""

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return self._without_sync(last)


class FabricFsdp2Engine(FabricSteps, Fsdp2Engine):
    """FSDP2 that Fabric sets up, reduces and updates."""

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if self._strategy.reduce_each_micro_batch else self._without_sync(last)


def build_fabric(strategy: Strategy, context: RankContext) -> Engine:
    """Engine of this rank.

    Raises:
        Mismatch: Fabric is not in the process group.
        UnsupportedCase: nodes have different numbers of ranks.
    """
    engine: FabricDdpEngine | FabricFsdp2Engine
    if isinstance(strategy, FullyShardedDataParallel):
        module, layers = unsharded_module(context), list[nn.Module]()

        def shard(model: nn.Module, _: Any) -> nn.Module:
            layers.extend(shard_module(strategy, context, model))
            return model

        backend = _BACKENDS[context.device.type]
        # Fabric's own mesh is not used; by default it would split layers over the ranks of a node
        over = ModelParallelStrategy(shard, context.world_size, 1, process_group_backend=backend)
        fabric = _make_fabric(context, over)
        wrapped = fabric.setup_module(module, move_to_device=False)
        engine = FabricFsdp2Engine(context, module, layers, strategy)
    else:
        assert isinstance(strategy, DistributedDataParallel)
        module, layers = load_plain_module(context)
        backend = _BACKENDS[context.device.type]
        fabric = _make_fabric(context, DDPStrategy(process_group_backend=backend, **ddp_arguments(strategy)))
        wrapped = fabric.setup_module(module)
        engine = FabricDdpEngine(context, wrapped._forward_module, layers)
        reduce_in_dtype(engine.module, context.case.precision)
    engine.use_fabric(fabric, wrapped)
    return engine


def _make_fabric(context: RankContext, strategy: FabricStrategy) -> Fabric:
    """Fabric of this rank, in the existing process group.

    The model computes in the dtype of the case by itself, so that all engines round alike.

    Raises:
        Mismatch: it is not in the process group.
        UnsupportedCase: nodes have different numbers of ranks.
    """
    nodes = list(context.node_of_rank) or [0] * context.world_size
    sizes = {nodes.count(node) for node in nodes}
    if len(sizes) > 1:
        raise UnsupportedCase(
            f"engine fabric needs as many ranks on each node, not {sorted(sizes)}; use engine: native"
        )
    fabric = Fabric(
        accelerator=context.device.type,
        strategy=strategy,
        devices=sizes.pop(),
        num_nodes=len(set(nodes)),
        precision="32-true",
        plugins=[TorchElasticEnvironment()],
    )
    fabric.launch()
    if fabric.world_size != context.world_size:
        raise Mismatch(f"fabric: expected {context.world_size} processes, found {fabric.world_size}")
    return fabric
