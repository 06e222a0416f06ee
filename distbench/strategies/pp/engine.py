"""The worker's side of ``pp``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from distbench.strategies import pp
from distbench.strategies.base import FullState, Refused, Setting
from distbench.strategies.pp.evaluation import Whole
from distbench.strategies.pp.gathering import gathered
from distbench.strategies.pp.order import theory
from distbench.strategies.pp.stages import Part, Stage, held, parts_of, shapes_of
from distbench.strategies.pp.tying import Tying
from distbench.strategies.torch_engine import checkpoint, modules, optimizer, reading, recomputation
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads.stages import Stages
from distbench.workloads.weights import plain_name

T = TypeVar("T")


class PipelineEngine(TorchEngine):
    """The stages of this rank, and the schedule that runs all ranks as one pipeline."""

    def __init__(
        self,
        setting: Setting,
        strategy: pp.PipelineParallel,
        model: Stages,
        parts: list[Part],
        stages: list[Stage],
    ) -> None:
        super().__init__(setting, held(parts), [layer for part in parts for layer in part.layers])
        self._model, self._stages = model, stages
        self._losses: list[torch.Tensor] = []
        for stage in stages:
            stage.span = lambda part: self.span(part)
        self._schedule = self._make_schedule(strategy)
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        owners = stages[0].stage_index_to_group_rank
        self._last_rank = owners[len(owners) - 1]
        self._tying = Tying(model, self.module, (owners[0], self._last_rank))
        self._totals = self._totalled() | theory(
            strategy.schedule,
            len(set(owners.values())),
            strategy.micro_batches,
            strategy.per_rank,
            self._schedule.pipeline_order or {},
        )

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro == 0:
            self._optimizer.zero_grad(set_to_none=True)
        self._micro += 1
        self._losses.clear()
        read = (micro_batch[self._model.input],) if self._is_first else ()
        labels = micro_batch["labels"] if self._is_last else None
        self._schedule.step(*read, target=labels, return_outputs=False)
        if self._micro == self._accumulation:
            with self.span("backward"):
                self._tying.sum_gradients()
        return self._told()

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        own = {
            name: parameter.grad if self._scale == 1 else parameter.grad / self._scale
            for name, parameter in self._own().items()
            if parameter.grad is not None
        }
        return gathered(own, self._setting.device)

    def full_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See the base; a rank with copies of tied weights of rank 0 gives those, to be compared."""
        own = {name: parameter.detach() for name, parameter in self._own().items()}
        yield from gathered(own, self._setting.device)
        if dist.get_rank():
            yield from self._tying.copies()

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        return modules.evaluated(Whole(self._setting, self._model, self._stages), judge)

    def effective(self) -> dict[str, Any]:
        settings, micro_batches = super().effective(), self._schedule._n_microbatches
        rows = (self._compute.rows or 0) * micro_batches
        return {
            **settings,
            **self._totals,
            "schedule": type(self._schedule).__name__.removeprefix("Schedule"),
            "stages": self._stages[0].num_stages,
            "in_flight": _of_all_stages({stage.stage_index: stage.most_in_flight for stage in self._stages}),
            "micro_batches": micro_batches,
            "micro_batch_size": rows,
            "global_batch_size": rows * self._accumulation * self._setting.data_ranks,
        }

    def grad_norm(self) -> float:
        own = torch.tensor(reading.norm(self._own_gradients()), dtype=torch.float64)
        return float(_over_all_stages(own.to(self._setting.device))) / self._scale

    def total_norm(self) -> torch.Tensor:
        own = nn.utils.get_total_norm(self._own_gradients())
        return _over_all_stages(own.double()).to(own.dtype)

    def clip(self, limit: float) -> None:
        # a copy of a tied weight is scaled as well, and was counted once
        nn.utils.clip_grads_with_norm_(self.module.parameters(), limit, self.total_norm())

    def save(self, folder: Path) -> None:
        updates = optimizer.scheduled_updates(self._scheduler)
        checkpoint.save(self.module, self._optimizer, folder, updates, part=self._part)

    def load(self, folder: Path) -> None:
        updates = checkpoint.load(self.module, self._optimizer, folder, part=self._part)
        optimizer.schedule_from(self._scheduler, updates)

    def consolidate(self) -> FullState:
        own = checkpoint.gather_optimizer(self.module, self._optimizer, whole=False)
        flat = {
            (name, key): value
            for name, moments in own.items()
            if name not in self._tying.names
            for key, value in moments.items()
        }
        moments: dict[str, dict[str, torch.Tensor]] = {}
        for (name, key), value in gathered(flat, self._setting.device):
            moments.setdefault(name, {})[key] = value.to("cpu", copy=True)
        return FullState(
            reading.on_host(self.full_state()),
            reading.on_host(gathered(self.buffers(), self._setting.device)),
            moments,
            optimizer.scheduled_updates(self._scheduler),
        )

    def load_full(self, state: FullState) -> None:
        # a rank with both copies would otherwise update the same moments twice: torch takes them as they are
        tied = self._model.tied.items()
        parameters = state.parameters | {copy: state.parameters[plain].clone() for copy, plain in tied}
        moments = state.optimizer | {
            copy: {key: value.clone() for key, value in state.optimizer[plain].items()}
            for copy, plain in tied
            if plain in state.optimizer
        }
        super().load_full(dataclasses.replace(state, parameters=parameters, optimizer=moments))

    def book(self, ledger: reading.Ledger) -> None:
        super().book(ledger)
        ledger.book("buffers", *(stage.buffers() for stage in self._stages))

    def close(self) -> None:
        self._tying.close()

    @property
    def _part(self) -> str:
        return f"rank {dist.get_rank()} "

    def _make_schedule(self, strategy: pp.PipelineParallel) -> Any:
        kind: Any = get_schedule_class(strategy.schedule)
        stages = self._stages if issubclass(kind, PipelineScheduleMulti) else self._stages[0]
        # torch's own scaling would divide once more what earlier schedules of a step left in the gradients
        return kind(stages, strategy.micro_batches, loss_fn=self._scaled_loss, scale_grads=False)

    def _scaled_loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        batch = {self._model.input: labels, "labels": labels}
        loss = self._loss(_Computed(output), batch)
        self._losses.append(loss.detach())
        return loss / self.loss_divisor()

    def loss_divisor(self) -> float:
        """What the loss of each micro-batch is divided by, so that gradients are means over the batch."""
        return float(self._divisor * self._schedule._n_microbatches)

    def _told(self) -> torch.Tensor:
        """Mean loss of the schedule that has just run, which the last stage knows."""
        dtype = torch.float64 if self._case.precision.compute == "fp64" else torch.float32
        loss = torch.empty((), dtype=dtype, device=self._setting.device)
        if self._is_last:
            loss.copy_(torch.stack(self._losses).mean())
        dist.broadcast(loss, src=self._last_rank)
        return loss

    def _own(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank by plain name, without copies of tied ones."""
        named = ((plain_name(name), parameter) for name, parameter in self.module.named_parameters())
        return {name: parameter for name, parameter in named if name not in self._tying.names}

    def _own_gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._own().values() if parameter.grad is not None]

    def _totalled(self) -> dict[str, Any]:
        """What the live modules of all ranks have together. A collective call."""
        recomputed = recomputation.describe_checkpointing(self.module)["checkpointed_layers"]
        own = self._own().values()
        counts = {
            "parameters": sum(parameter.numel() for parameter in own),
            "trainable_tensors": sum(parameter.requires_grad for parameter in own),
            "checkpointed_layers": recomputed,
        }
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, counts)
        return {
            **{key: sum(counted[key] for counted in of_ranks) for key in counts},
            "layers_of_stages": _of_all_stages({each.stage_index: each.layers for each in self._stages}),
        }


def _of_all_stages(own: dict[int, int]) -> list[int]:
    """A number of each stage, of which *own* has those of this rank by stage. A collective call."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    every = {stage: number for each in of_ranks for stage, number in each.items()}
    return [every[stage] for stage in sorted(every)]


def _over_all_stages(norm: torch.Tensor) -> torch.Tensor:
    """L2 norm of what all ranks have, of which *norm* is this rank's. A collective call."""
    square = norm.square()
    dist.all_reduce(square)
    return square.sqrt()


class _Computed(nn.Module):
    """Stands in a loss for the model whose output is known."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: torch.Tensor) -> torch.Tensor:
        """The output, whatever goes in."""
        return self._output


def build_pp(strategy: pp.PipelineParallel, setting: Setting) -> PipelineEngine:
    """Engine of this rank, which has no more than its own stages.

    Raises:
        Refused: the workload does not say how it is cut.
    """
    if (model := setting.workload.stages()) is None:
        raise Refused(strategy.uncut(setting.case))
    layers = strategy.layers_of_stages(model, setting.world_size)
    own = {
        number: part
        for number, part in enumerate(layers)
        if strategy.order.owner(number, setting.world_size) == setting.rank
    }
    samples = setting.case.batch.micro_batch_size // strategy.micro_batches
    parts, last = parts_of(setting, model, own), len(layers) - 1
    stages = []
    for part in parts:
        ends = {"is_first": part.number == 0, "is_last": part.number == last}
        stages.append(Stage(part, len(layers), setting, shapes_of(setting, model, samples, **ends)))
    return PipelineEngine(setting, strategy, model, parts, stages)
