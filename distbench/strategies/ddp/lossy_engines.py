"""Engines of PowerSGD and of post-local SGD: DDP that sends less than full gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import ddp
from distbench.strategies.base import RankContext
from distbench.strategies.ddp.engine import DdpEngine
from distbench.strategies.ddp.lossy import are_replicas_equal, checkpoint_problem
from distbench.strategies.engine import NoCheckpoints
from distbench.strategies.torch_engine.readback import StorageCounter, dtype_name, l2_norm
from distbench.strategies.torch_engine.replica_average import averaged_parameters, mean_of_replicas

T = TypeVar("T")


class _BlockingGroup(dist.ProcessGroup):
    """A process group whose all-reduces have completed when they return.

    Torch's hook issues the second and third of a bucket when the previous ones complete, which with gloo is
    on gloo's own threads: with several buckets, each rank issues them in a different order, and the ranks
    abort (torch 2.13).
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        # torch's stub declares only one of its two constructors
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group = group

    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Sum *tensors* over the ranks."""
        work = self._group.allreduce(tensors, options)
        work.wait()
        return work


class LossyEngine(NoCheckpoints, DdpEngine):
    """DDP with a communication hook whose state is in no checkpoint."""

    def __init__(
        self,
        strategy: ddp.DistributedDataParallel,
        context: RankContext,
        module: DistributedDataParallel,
        layers: list[nn.Module],
    ) -> None:
        self._strategy = strategy
        super().__init__(context, module, layers)
        self._state = self.register_hook(module)

    def register_hook(self, module: DistributedDataParallel) -> Any:
        """Register the communication hook with *module*; return the state of the hook."""
        raise NotImplementedError

    def reduce_dtype(self) -> str:
        return dtype_name(p.dtype for p in self.module.parameters())

    def effective_settings(self) -> dict[str, Any]:
        hooks = [hook.__qualname__ for hook, _ in self.module._comm_hooks]
        return {**super().effective_settings(), "communication_hook": "+".join(hooks)}

    @property
    def checkpoint_problem(self) -> str:
        return checkpoint_problem(self._strategy)


class PowerSgdEngine(LossyEngine):
    """Gradients are reduced as products of two matrices."""

    _state: PowerSGDState

    def register_hook(self, module: DistributedDataParallel) -> PowerSGDState:
        asked = self._strategy
        everybody = dist.group.WORLD
        state = PowerSGDState(
            _BlockingGroup(everybody) if everybody and dist.get_backend() == "gloo" else everybody,
            matrix_approximation_rank=asked.powersgd_rank,
            start_powerSGD_iter=asked.powersgd_start,
            min_compression_rate=asked.min_compression_rate,
        )
        module.register_comm_hook(state, powerSGD_hook)
        return state

    def effective_settings(self) -> dict[str, Any]:
        state = self._state
        settings = {
            "rank": state.matrix_approximation_rank,
            "start": state.start_powerSGD_iter,
            "min_compression_rate": state.min_compression_rate,
            "error_feedback": state.use_error_feedback,
            "warm_start": state.warm_start,
        }
        return {**super().effective_settings(), "powersgd": settings}

    def count_storages(self, counter: StorageCounter) -> None:
        super().count_storages(counter)
        state = self._state
        counter.count("buffers", state.error_dict, state.p_memory_dict, state.q_memory_dict)


class LocalSgdEngine(LossyEngine):
    """Ranks update their own replicas; between two averages, the mean of the replicas is reported."""

    _state: PostLocalSGDState
    _optimizer: PostLocalSGDOptimizer
    _updates = 0
    """Counted here, independently of the averager that is checked."""

    def register_hook(self, module: DistributedDataParallel) -> PostLocalSGDState:
        # one group per rank: between two averages it reduces with no other rank
        alone, _ = dist.new_subgroups(1)
        state = PostLocalSGDState(None, alone, self._strategy.local_sgd_start)
        module.register_comm_hook(state, post_localSGD_hook)
        return state

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        asked = self._strategy
        averager = PeriodicModelAverager(asked.local_sgd_period, warmup_steps=asked.local_sgd_start)
        made: torch.optim.Optimizer = PostLocalSGDOptimizer(super().make_optimizer(layers), averager)
        return made

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        inside: torch.optim.Optimizer = self._optimizer.optim
        return inside

    def effective_settings(self) -> dict[str, Any]:
        averager: Any = self._optimizer.averager
        settings = {"period": averager.period, "start": self._state.start_localSGD_iter}
        return {
            **super().effective_settings(),
            "local_sgd": {**settings, "warmup_steps": averager.warmup_steps},
        }

    def step(self) -> None:
        super().step()
        self._updates += 1

    @property
    def has_equal_replicas(self) -> bool:
        return are_replicas_equal(self._strategy, self._updates)

    def without_communication(self) -> None:
        # without reduced gradients its optimizer would still average
        return None

    def grad_norm(self) -> float:
        return l2_norm(gradient for _, gradient in self.full_gradients())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        return mean_of_replicas(super().full_gradients(), are_equal=False)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return mean_of_replicas(super().full_parameters(), are_equal=self.has_equal_replicas)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        with averaged_parameters(self.module.parameters()):
            return super().evaluate(score)
