"""The worker's side of ``pp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from distbench.core.meshes import OF_DATA
from distbench.strategies import pp
from distbench.strategies._pipeline import stages_of, uncut
from distbench.strategies.base import Refused, Setting
from distbench.strategies.pp import facts, order, timing, waits
from distbench.strategies.pp.line import Line
from distbench.strategies.pp.parts import PartEngine
from distbench.strategies.pp.stages import Part, Stage, parts_of, shapes_of
from distbench.strategies.torch_engine import modules, reading, sharding, tensor_parallel
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.stagewise import Computed, Whole
from distbench.workloads.stages import Stages

T = TypeVar("T")


class PipelineEngine(PartEngine):
    """The stages of this rank, and the schedule that runs all ranks of its line as one pipeline."""

    def __init__(
        self,
        setting: Setting,
        strategy: pp.PipelineParallel,
        model: Stages,
        parts: list[Part],
        stages: list[Stage],
        line: Line,
        layer_ms: Sequence[float],
    ) -> None:
        first, last = (strategy.order.owner(end, line.size) for end in (0, stages[0].num_stages - 1))
        super().__init__(setting, model, parts, line, (first, last))
        self._last_place = last
        # only ranks that have the last stage compute a loss
        groups = [line.mesh.get_group(name) for name in OF_DATA if name in (line.mesh.mesh_dim_names or ())]
        self._loss = GlobalMean(setting, chunks=strategy.micro_batches, groups=groups)
        self._strategy, self._stages, self._own_parts = strategy, stages, parts
        self._losses: list[torch.Tensor] = []
        self._logits_are_split = False
        for stage in stages:
            stage.span = lambda part: self.span(part)
        waits.mark(self)
        self._schedule = self._make_schedule()
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        self._totals = facts.totals(line, self.module, self.own(), stages) | order.theory(
            strategy.schedule,
            line.size,
            strategy.micro_batches,
            strategy.per_rank,
            self._schedule.pipeline_order or {},
        )
        if layer_ms:
            self._totals["layer_ms"] = [*layer_ms]

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro == 0:
            self._optimizer.zero_grad(set_to_none=True)
        self._micro += 1
        ends_step = self._micro == self._accumulation
        for stage in self._stages:
            stage.ends_step = ends_step
        self._losses.clear()
        read = (micro_batch[self._model.input],) if self._is_first else ()
        labels = micro_batch["labels"] if self._is_last else None
        with loss_parallel() if self._strategy.loss_parallel else nullcontext():
            self._schedule.step(*read, target=labels, return_outputs=False)
        if ends_step:
            with self.span("backward"):
                tensor_parallel.place_gradients(self.module)
                self._tying.sum_gradients()
        return self._told()

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        between = self._strategy.between(self._model, self._setting.world_size)
        parts = {stage.stage_index: stage.submod for stage in self._stages}
        owners = self._stages[0].stage_index_to_group_rank
        return modules.evaluated(Whole(self._setting, self._line.group, between, parts, owners), judge)

    def effective(self) -> dict[str, Any]:
        settings, micro_batches = super().effective(), self._schedule._n_microbatches
        rows = (self._compute.rows or 0) * micro_batches
        return {
            **settings,
            **self._totals,
            **(self._of_mesh() if self._strategy.asked else {}),
            "schedule": type(self._schedule).__name__.removeprefix("Schedule"),
            "stages": self._stages[0].num_stages,
            "in_flight": self._most_in_flight(),
            "micro_batches": micro_batches,
            "micro_batch_size": rows,
            "global_batch_size": rows * self._accumulation * self._setting.data_ranks,
        }

    def remarks(self) -> list[str]:
        own = [said for part in self._own_parts for said in sharding.remarks(part.module, part.layers)]
        said_by_all = (said for of_rank in self._line.every(own) for said in of_rank)
        return [*super().remarks(), *dict.fromkeys(said_by_all)]

    def reduce_dtype(self) -> str | None:
        return facts.reduce_dtype(self._stages)

    def book(self, ledger: reading.Ledger) -> None:
        facts.book(ledger, self._stages)
        super().book(ledger)

    def _most_in_flight(self) -> list[int]:
        kept = {stage.stage_index: stage.most_in_flight for stage in self._stages}
        return facts.of_all_stages(self._line, kept)

    def _of_mesh(self) -> dict[str, Any]:
        told = facts.of_mesh(self._line, self._stages)
        if "tp" in told["mesh"]:
            told["sequence_parallel"] = self._compute.positions != self._setting.workload.shape.length
            # the ranks of other stages have seen no logits
            told["loss_parallel"] = any(self._line.every(self._logits_are_split))
        return told

    def _make_schedule(self) -> Any:
        kind: Any = get_schedule_class(self._strategy.schedule)
        stages = self._stages if issubclass(kind, PipelineScheduleMulti) else self._stages[0]
        # torch's own scaling would divide once more what earlier schedules of a step left in the gradients
        micro_batches = self._strategy.micro_batches
        return kind(stages, micro_batches, loss_fn=self._scaled_loss, scale_grads=False)

    def _scaled_loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        batch = {self._model.input: labels, "labels": labels}
        self._logits_are_split = isinstance(output, DTensor)
        loss = self._loss(Computed(output), batch)
        self._losses.append(reading.full(loss.detach()))
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
        dist.broadcast(loss, group=self._line.group, group_src=self._last_place)
        return loss


def build_pp(strategy: pp.PipelineParallel, setting: Setting) -> PipelineEngine:
    """Engine of this rank, which has no more than its own stages.

    Raises:
        Refused: the workload does not say how it is cut, or nothing is trained in a stage with replicas.
    """
    if (model := stages_of(setting.case)) is None:
        raise Refused(uncut(setting.case))
    mesh = strategy.sizes(setting.world_size)
    line, ranks = Line.of(mesh, setting.device), mesh.size("pp")
    layer_ms = timing.layer_ms(setting, strategy, model) if strategy.split == "time" else []
    layers = strategy.layers_of_stages(model, ranks, layer_ms)
    own = {
        number: part
        for number, part in enumerate(layers)
        if strategy.order.owner(number, ranks) == line.place
    }
    samples = setting.case.batch.micro_batch_size // strategy.micro_batches
    between = strategy.between(model, setting.world_size)
    parts, last = parts_of(setting, strategy, model, own, line), len(layers) - 1
    stages = []
    for part in parts:
        ends = {"is_first": part.number == 0, "is_last": part.number == last}
        stages.append(Stage(part, len(layers), setting, line, shapes_of(setting, between, samples, **ends)))
    return PipelineEngine(setting, strategy, model, parts, stages, line, layer_ms)
