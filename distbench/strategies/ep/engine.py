"""The worker's side of ``ep``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import ep
from distbench.strategies.base import Refused, Setting
from distbench.strategies.engine import FullState
from distbench.strategies.ep.exchange import Exchange
from distbench.strategies.torch_engine import (
    checkpoint,
    device_meshes,
    modules,
    naming,
    optimizer,
    reading,
)
from distbench.strategies.torch_engine.replicated import ReplicatedEngine
from distbench.workloads import weights
from distbench.workloads.mixture import Mixture
from distbench.workloads.weights import DTYPES, plain_name

_PLACES = (Replicate(), Shard(0))
"""Of the experts over the mesh: copies, each of which its ranks share by whole experts."""


class ExpertParallelEngine(ReplicatedEngine):
    """DDP around all that is no expert; experts of this rank, whose gradients come with the tokens."""

    def __init__(
        self,
        setting: Setting,
        module: nn.Module,
        layers: list[nn.Module],
        mesh: DeviceMesh,
        names: frozenset[str],
    ) -> None:
        super().__init__(setting, module, layers)
        self._mesh, self._names = mesh, names

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = super().forward_backward(micro_batch)
        if self._micro == self._accumulation:
            with self.span("backward"):
                self.finish_experts()
        return loss

    def finish_experts(self) -> None:
        """Make the gradients of experts, which are sums over the ranks that sent tokens, means over all."""
        copies = self._mesh["dp_replicate"]
        for gradient in self._split_gradients()[0]:
            gradient.div_(self._setting.world_size)
            if copies.size() > 1:
                dist.all_reduce(gradient, group=copies.get_group())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                gradient = reading.full(self._placed(name, parameter.grad))
                yield plain_name(name), gradient if self._scale == 1 else gradient / self._scale

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield plain_name(name), reading.full(self._placed(name, parameter.detach()))

    def grad_norm(self) -> float:
        named = self.module.named_parameters()
        every = (self._placed(name, each.grad) for name, each in named if each.grad is not None)
        return reading.norm(every) / self._scale

    def total_norm(self) -> torch.Tensor:
        # where nothing is trained torch gives 0 on the host, and NCCL reduces with nobody there
        experts, others = (
            nn.utils.get_total_norm(each).to(self._setting.device) for each in self._split_gradients()
        )
        squares = experts.double() ** 2
        dist.all_reduce(squares, group=self._mesh["ep"].get_group())
        return (squares + others.double() ** 2).sqrt().to(others.dtype)

    def clip(self, limit: float) -> None:
        nn.utils.clip_grads_with_norm_(self.module.parameters(), limit, self.total_norm())

    def effective(self) -> dict[str, Any]:
        own = [p for name, p in self.module.named_parameters() if self._is_of_experts(name)]
        mesh = device_meshes.sizes_of(self._mesh)
        settings, experts = super().effective(), reading.counts(own)
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

    def save(self, folder: Path) -> None:
        updates = optimizer.scheduled_updates(self._scheduler)
        checkpoint.save(self.module, self._optimizer, folder, updates, placed=self._placed)

    def load(self, folder: Path) -> None:
        updates = checkpoint.load(self.module, self._optimizer, folder, placed=self._placed)
        optimizer.schedule_from(self._scheduler, updates)

    def consolidate(self) -> FullState:
        own = checkpoint.gather_optimizer(self.module, self._optimizer, whole=False)
        return FullState(
            reading.on_host(self.full_parameters()),
            self.buffers(),
            {
                name: {key: self._whole(name, value) for key, value in one.items()}
                for name, one in own.items()
            },
            optimizer.scheduled_updates(self._scheduler),
        )

    def load_full(self, state: FullState) -> None:
        parameters = {name: self._own(name, value) for name, value in state.parameters.items()}
        moments = {
            name: {key: self._own(name, value) for key, value in one.items()}
            for name, one in state.optimizer.items()
        }
        super().load_full(dataclasses.replace(state, parameters=parameters, optimizer=moments))

    def _split_gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Gradients of the experts of this rank, and those of all else."""
        parts: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                parts[not self._is_of_experts(name)].append(parameter.grad)
        return parts

    def _is_of_experts(self, name: str) -> bool:
        return plain_name(name) in self._names

    def _placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """*tensor* of the parameter *name*; of experts the distributed tensor of which it is the shard."""
        # the number of steps of a parameter is no stack
        if not self._is_of_experts(name) or not tensor.ndim:
            return tensor
        return DTensor.from_local(tensor, self._mesh, _PLACES, run_check=False)

    def _whole(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """*value* of the parameter *name* of all experts, in host memory. A collective call."""
        placed = self._placed(name, value.to(self._setting.device))
        return reading.full(placed).to("cpu", copy=True)

    def _own(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The part of *value*, of the parameter *name*, that is of the experts of this rank."""
        if not self._is_of_experts(name) or not value.ndim:
            return value
        ranks = self._mesh["ep"]
        return value.chunk(ranks.size())[ranks.get_local_rank()]


def build_ep(strategy: ep.ExpertParallel, setting: Setting) -> ExpertParallelEngine:
    """Engine of this rank, which draws the experts that it has, and no others.

    Raises:
        Refused: the workload has no experts, or names modules that it does not have.
    """
    if (mixture := setting.workload.mixture()) is None:
        raise Refused(ep.unmixed(setting.case))
    sizes = strategy.dimensions(setting.world_size)
    mesh = device_meshes.made(sizes, setting.device)
    module = weights.cast(weights.skeleton(setting.workload), DTYPES[setting.case.precision.master])
    naming.check(module, setting.workload, (mixture.modules, mixture.routers))
    names = _spread(module, mixture, mesh)
    weights.empty(module, setting.device)
    weights.load(module, setting.weights)
    _localise(module, mixture)
    layers = modules.computing_layers(setting, module)
    return ExpertParallelEngine(setting, _reduced(module, setting, names), layers, mesh, names)


def _spread(module: nn.Module, mixture: Mixture, mesh: DeviceMesh) -> frozenset[str]:
    """Leave this rank its experts in *module*, which is on the meta device; return all their names."""
    names = []
    for prefix, experts in _experts_of(module, mixture):
        for name, stack in list(experts.named_parameters(recurse=False)):
            own = stack.detach()[: mixture.experts // mesh["ep"].size()]
            shard = DTensor.from_local(own, mesh, _PLACES, run_check=False)
            setattr(experts, name, nn.Parameter(shard))
            names.append(f"{prefix}.{name}")
        if mesh["ep"].size() > 1:
            Exchange(experts, mesh["ep"].get_group())
    return frozenset(names)


def _localise(module: nn.Module, mixture: Mixture) -> None:
    """Make plain tensors of the shards of experts: all that is computed with them is of this rank."""
    for _, experts in _experts_of(module, mixture):
        for name, shard in list(experts.named_parameters(recurse=False)):
            own: Any = shard.detach()
            setattr(experts, name, nn.Parameter(own.to_local()))


def _experts_of(module: nn.Module, mixture: Mixture) -> list[tuple[str, nn.Module]]:
    return [named for named in module.named_modules() if fnmatchcase(named[0], mixture.modules)]


def _reduced(module: nn.Module, setting: Setting, names: frozenset[str]) -> DistributedDataParallel:
    """*module* in DDP, which leaves the parameters *names* alone."""
    left = [name for name, _ in module.named_parameters() if plain_name(name) in names]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, left)
    return DistributedDataParallel(
        module,
        device_ids=[setting.device] if setting.device.type == "cuda" else None,
    )
