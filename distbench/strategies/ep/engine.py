"""Engine of ``ep``, in the worker, and the exchange of tokens between its ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
    wait_tensor,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import ep
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.engine import TrainingState
from distbench.strategies.torch_engine import checkpoint, device_meshes, modules, optimizer, readback
from distbench.strategies.torch_engine.engine import DdpWrappedEngine
from distbench.workloads import weights
from distbench.workloads.mixture import ExpertLayers
from distbench.workloads.weights import DTYPES, plain_name

_EXPERT_PLACEMENTS = (Replicate(), Shard(0))
"""Placements of the experts over the mesh: replicas, each split by expert among its ranks."""


class ExpertParallelEngine(DdpWrappedEngine):
    """DDP around everything except experts; gradients of this rank's experts arrive with the tokens."""

    def __init__(
        self,
        context: RankContext,
        module: nn.Module,
        layers: list[nn.Module],
        mesh: DeviceMesh,
        names: frozenset[str],
    ) -> None:
        super().__init__(context, module, layers)
        self._mesh, self._expert_names = mesh, names

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = super().forward_backward(micro_batch)
        if self._micro_batch_count == self._accumulation:
            with self.span("backward"):
                self.reduce_expert_gradients()
        return loss

    def reduce_expert_gradients(self) -> None:
        """Turn gradients of experts from sums over the ranks that sent tokens into means over all ranks."""
        copies = self._mesh["dp_replicate"]
        for gradient in self._expert_and_other_gradients()[0]:
            gradient.div_(self._context.world_size)
            if copies.size() > 1:
                dist.all_reduce(gradient, group=copies.get_group())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                gradient = readback.full_tensor(self._as_distributed(name, parameter.grad))
                yield plain_name(name), gradient if self._scale == 1 else gradient / self._scale

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield plain_name(name), readback.full_tensor(self._as_distributed(name, parameter.detach()))

    def grad_norm(self) -> float:
        named = self.module.named_parameters()
        every = (self._as_distributed(name, each.grad) for name, each in named if each.grad is not None)
        return readback.l2_norm(every) / self._scale

    def total_norm(self) -> torch.Tensor:
        # if nothing is trained, torch returns 0 on the host, which NCCL can't reduce
        experts, others = (
            nn.utils.get_total_norm(each).to(self._context.device)
            for each in self._expert_and_other_gradients()
        )
        squares = experts.double() ** 2
        dist.all_reduce(squares, group=self._mesh["ep"].get_group())
        return (squares + others.double() ** 2).sqrt().to(others.dtype)

    def effective_settings(self) -> dict[str, Any]:
        own = [p for name, p in self.module.named_parameters() if self._is_expert(name)]
        mesh = device_meshes.mesh_sizes(self._mesh)
        settings, experts = super().effective_settings(), readback.parameter_counts(own)
        whole = {
            key: settings[key] + (mesh["ep"] - 1) * experts[key]
            for key in ("parameters", "trained_parameters")
        }
        return {
            **settings,
            **whole,
            "mesh": mesh,
            "experts_on_a_rank": len(own[0]),
        }

    def save_sharded(self, folder: Path) -> None:
        updates = optimizer.scheduled_updates(self._scheduler)
        checkpoint.save(self.module, self._optimizer, folder, updates, to_distributed=self._as_distributed)

    def load_sharded(self, folder: Path) -> None:
        updates = checkpoint.load(self.module, self._optimizer, folder, to_distributed=self._as_distributed)
        optimizer.restore_schedule(self._scheduler, updates)

    def gather_state(self) -> TrainingState:
        own = checkpoint.gather_optimizer(self.module, self._optimizer, full=False)
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            self.buffers(),
            {
                name: {key: self._full_tensor(name, value) for key, value in one.items()}
                for name, one in own.items()
            },
            optimizer.scheduled_updates(self._scheduler),
        )

    def scatter_state(self, state: TrainingState) -> None:
        parameters = {name: self._local_part(name, value) for name, value in state.parameters.items()}
        moments = {
            name: {key: self._local_part(name, value) for key, value in one.items()}
            for name, one in state.optimizer.items()
        }
        super().scatter_state(dataclasses.replace(state, parameters=parameters, optimizer=moments))

    def _expert_and_other_gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Gradients of the experts of this rank, and gradients of everything else."""
        parts: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                parts[not self._is_expert(name)].append(parameter.grad)
        return parts

    def _is_expert(self, name: str) -> bool:
        return plain_name(name) in self._expert_names

    def _as_distributed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """*tensor* of the parameter *name*; for experts, the distributed tensor whose shard it is."""
        # the step counter of a parameter has no expert dimension
        if not self._is_expert(name) or not tensor.ndim:
            return tensor
        return DTensor.from_local(tensor, self._mesh, _EXPERT_PLACEMENTS, run_check=False)

    def _full_tensor(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """*value* of the parameter *name* for all experts, in host memory. Collective call."""
        placed = self._as_distributed(name, value.to(self._context.device))
        return readback.full_tensor(placed).to("cpu", copy=True)

    def _local_part(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The part of *value*, of the parameter *name*, for the experts of this rank."""
        if not self._is_expert(name) or not value.ndim:
            return value
        ranks = self._mesh["ep"]
        return value.chunk(ranks.size())[ranks.get_local_rank()]


def build_ep(strategy: ep.ExpertParallel, context: RankContext) -> ExpertParallelEngine:
    """Engine of this rank, which initializes only its own experts.

    Raises:
        UnsupportedCase: the workload has no experts, or declares names of modules that it does not have.
    """
    if (mixture := context.workload.expert_layers()) is None:
        raise UnsupportedCase(ep.undeclared_experts(context.case))
    sizes = strategy.mesh_sizes(context.world_size)
    mesh = device_meshes.init_mesh(sizes, context.device)
    module = weights.cast(weights.meta_module(context.workload), DTYPES[context.case.precision.master])
    modules.check_module_names(module, context.workload, (mixture.modules, mixture.routers))
    names = _shard_experts(module, mixture, mesh)
    weights.materialise(module, context.device)
    weights.load_into(module, context.weights_file)
    _use_local_shards(module, mixture)
    layers = modules.prepare_module(context, module)
    return ExpertParallelEngine(context, _wrap_ddp(module, context, names), layers, mesh, names)


def _shard_experts(module: nn.Module, mixture: ExpertLayers, mesh: DeviceMesh) -> frozenset[str]:
    """Keep only this rank's experts in *module*, on the meta device; return the names of all of them."""
    names = []
    for prefix, experts in _expert_modules(module, mixture):
        for name, stack in list(experts.named_parameters(recurse=False)):
            own = stack.detach()[: mixture.experts // mesh["ep"].size()]
            shard = DTensor.from_local(own, mesh, _EXPERT_PLACEMENTS, run_check=False)
            setattr(experts, name, nn.Parameter(shard))
            names.append(f"{prefix}.{name}")
        if mesh["ep"].size() > 1:
            TokenDispatcher(experts, mesh["ep"].get_group())
    return frozenset(names)


def _use_local_shards(module: nn.Module, mixture: ExpertLayers) -> None:
    """Replace the shards of experts by plain tensors: this rank alone computes with them."""
    for _, experts in _expert_modules(module, mixture):
        for name, shard in list(experts.named_parameters(recurse=False)):
            own: Any = shard.detach()
            setattr(experts, name, nn.Parameter(own.to_local()))


def _expert_modules(module: nn.Module, mixture: ExpertLayers) -> list[tuple[str, nn.Module]]:
    return [named for named in module.named_modules() if fnmatchcase(named[0], mixture.modules)]


def _wrap_ddp(module: nn.Module, context: RankContext, names: frozenset[str]) -> DistributedDataParallel:
    """*module* in DDP, which ignores the parameters *names*."""
    left = [name for name, _ in module.named_parameters() if plain_name(name) in names]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, left)
    return DistributedDataParallel(
        module,
        device_ids=[context.device] if context.device.type == "cuda" else None,
    )


class TokenDispatcher:
    """Passes the tokens that all ranks of a group send to the experts of a module.

    The module is called as in the plain model, with this rank's tokens for all experts, and returns their
    results; inside, it gets the tokens of its own experts.
    """

    def __init__(self, experts: nn.Module, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sent: list[int] = []
        self._received: list[list[int]] = []
        experts.register_forward_pre_hook(self._dispatch)
        experts.register_forward_hook(self._combine)

    def _dispatch(self, _experts: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> Any:
        tokens, counts = inputs
        ranks = self._group.size()
        of_ranks = wait_tensor(all_to_all_single(counts, None, None, self._group)).view(ranks, -1)
        # the host needs the number of incoming tokens, so it waits for the GPU
        self._sent = counts.view(ranks, -1).sum(1).tolist()
        self._received = of_ranks.tolist()
        arrived = self._all_to_all(tokens, self._received_per_rank, self._sent)
        return _sort_by_expert(arrived, self._received), of_ranks.sum(0)

    def _combine(self, _experts: nn.Module, _inputs: Any, made: torch.Tensor) -> torch.Tensor:
        by_rank = _sort_by_rank(made, self._received)
        return self._all_to_all(by_rank, self._sent, self._received_per_rank)

    @property
    def _received_per_rank(self) -> list[int]:
        """Number of tokens received from each rank."""
        return [sum(of_rank) for of_rank in self._received]

    def _all_to_all(self, tokens: torch.Tensor, come: list[int], go: list[int]) -> torch.Tensor:
        exchanged: torch.Tensor = wait_tensor(all_to_all_single_autograd(tokens, come, go, self._group))
        return exchanged


def _sort_by_expert(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """*tokens* (tokens, dim), sorted by rank and then by expert, reordered by expert.

    *counts* has, for each rank, the number of tokens that it sent to each expert.
    """
    experts = len(counts[0])
    parts = tokens.split([count for of_rank in counts for count in of_rank])
    return torch.cat([part for expert in range(experts) for part in parts[expert::experts]])


def _sort_by_rank(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The inverse of ``_sort_by_expert``."""
    ranks = len(counts)
    parts = tokens.split([count for of_expert in zip(*counts, strict=True) for count in of_expert])
    return torch.cat([part for rank in range(ranks) for part in parts[rank::ranks]])
