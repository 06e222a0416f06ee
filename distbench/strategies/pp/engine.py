"""Engine of ``pp``, in the worker."""

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

from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies import pp
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.pp import layer_times, order, stage_facts
from distbench.strategies.pp.pipeline_group import PipelineGroup
from distbench.strategies.pp.stage_engine import StageEngine
from distbench.strategies.pp.stages import StageModule, TimedStage, build_stage_modules, stage_io_tensors
from distbench.strategies.theory.pipeline_parallelism import stages_of, undeclared_stages
from distbench.strategies.torch_engine import layer_sharding, modules, readback, tensor_parallel
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.stagewise import KnownOutput, StagedModel
from distbench.workloads.stages import PipelineStages

T = TypeVar("T")


class PipelineEngine(StageEngine):
    """The stages of this rank, and the schedule that runs all ranks of one pipeline."""

    def __init__(
        self,
        context: RankContext,
        strategy: pp.PipelineParallel,
        model: PipelineStages,
        parts: list[StageModule],
        stages: list[TimedStage],
        pipeline: PipelineGroup,
        layer_ms: Sequence[float],
    ) -> None:
        first, last = (
            strategy.schedule_rules.rank_of_stage(end, pipeline.size) for end in (0, stages[0].num_stages - 1)
        )
        super().__init__(context, model, parts, pipeline, (first, last))
        self._last_stage_rank = last
        # only ranks with the last stage compute a loss
        groups = [
            pipeline.device_mesh.get_group(name)
            for name in DATA_DIMENSIONS
            if name in (pipeline.device_mesh.mesh_dim_names or ())
        ]
        self._loss = GlobalMean(context, chunks=strategy.micro_batches, groups=groups)
        self._strategy, self._stages, self._stage_modules = strategy, stages, parts
        self._losses: list[torch.Tensor] = []
        self._logits_are_split = False
        for stage in stages:
            stage.span = lambda part: self.span(part)
        stage_facts.time_message_waits(self)
        self._schedule = self._make_schedule()
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)
        self._pipeline_totals = stage_facts.pipeline_totals(
            pipeline, self.module, self.own_parameters(), stages
        ) | order.schedule_theory(
            strategy.schedule,
            pipeline.size,
            strategy.micro_batches,
            strategy.stages_on_rank,
            self._schedule.pipeline_order or {},
        )
        if layer_ms:
            self._pipeline_totals["layer_ms"] = [*layer_ms]

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._micro_batch_count == 0:
            self._optimizer.zero_grad(set_to_none=True)
        self._micro_batch_count += 1
        ends_step = self._micro_batch_count == self._accumulation
        for stage in self._stages:
            stage.is_last_micro_batch = ends_step
        self._losses.clear()
        read = (micro_batch[self._model.input_array],) if self._is_first else ()
        labels = micro_batch["labels"] if self._is_last else None
        with loss_parallel() if self._strategy.loss_parallel else nullcontext():
            self._schedule.step(*read, target=labels, return_outputs=False)
        if ends_step:
            with self.span("backward"):
                tensor_parallel.redistribute_gradients(self.module)
                self._tied_weights.sum_gradients()
        return self._broadcast_loss()

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        between = self._strategy.activation_shape(self._model, self._context.world_size)
        parts = {stage.stage_index: stage.submod for stage in self._stages}
        owners = self._stages[0].stage_index_to_group_rank
        return modules.run_evaluation(
            StagedModel(self._context, self._pipeline.group, between, parts, owners), score
        )

    def effective_settings(self) -> dict[str, Any]:
        settings, micro_batches = super().effective_settings(), self._schedule._n_microbatches
        rows = (self._probe.samples or 0) * micro_batches
        return {
            **settings,
            **self._pipeline_totals,
            **(self._mesh_settings() if self._strategy.requested_mesh else {}),
            "schedule": type(self._schedule).__name__.removeprefix("Schedule"),
            "stages": self._stages[0].num_stages,
            "in_flight": self._max_in_flight(),
            "micro_batches": micro_batches,
            "micro_batch_size": rows,
            "global_batch_size": rows * self._accumulation * self._context.data_parallel_size,
        }

    def remarks(self) -> list[str]:
        own = [
            remark
            for part in self._stage_modules
            for remark in layer_sharding.remarks(part.module, part.layers)
        ]
        said_by_all = (remark for of_rank in self._pipeline.all_gather_object(own) for remark in of_rank)
        return [*super().remarks(), *dict.fromkeys(said_by_all)]

    def reduce_dtype(self) -> str | None:
        return stage_facts.stage_reduce_dtype(self._stages)

    def count_storages(self, counter: readback.StorageCounter) -> None:
        stage_facts.count_stage_storages(counter, self._stages)
        super().count_storages(counter)

    def _max_in_flight(self) -> list[int]:
        kept = {stage.stage_index: stage.max_in_flight for stage in self._stages}
        return stage_facts.gather_per_stage(self._pipeline, kept)

    def _mesh_settings(self) -> dict[str, Any]:
        settings = stage_facts.mesh_settings(self._pipeline, self._stages)
        if "tp" in settings["mesh"]:
            settings["sequence_parallel"] = (
                self._probe.positions != self._context.workload.shape.sample_length
            )
            # the ranks of other stages have seen no logits
            settings["loss_parallel"] = any(self._pipeline.all_gather_object(self._logits_are_split))
        return settings

    def _make_schedule(self) -> Any:
        kind: Any = get_schedule_class(self._strategy.schedule)
        stages = self._stages if issubclass(kind, PipelineScheduleMulti) else self._stages[0]
        # torch's own scaling would divide the gradients of earlier schedules of the step once more
        micro_batches = self._strategy.micro_batches
        return kind(stages, micro_batches, loss_fn=self._scaled_loss, scale_grads=False)

    def _scaled_loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        batch = {self._model.input_array: labels, "labels": labels}
        self._logits_are_split = isinstance(output, DTensor)
        loss = self._loss(KnownOutput(output), batch)
        self._losses.append(readback.full_tensor(loss.detach()))
        return loss / self.loss_divisor()

    def loss_divisor(self) -> float:
        """Divisor of the loss of each micro-batch, so that gradients are means over the batch."""
        return float(self._divisor * self._schedule._n_microbatches)

    def _broadcast_loss(self) -> torch.Tensor:
        """Mean loss of the last run of the schedule, broadcast from the last stage."""
        dtype = torch.float64 if self._case.precision.compute == "fp64" else torch.float32
        loss = torch.empty((), dtype=dtype, device=self._context.device)
        if self._is_last:
            loss.copy_(torch.stack(self._losses).mean())
        dist.broadcast(loss, group=self._pipeline.group, group_src=self._last_stage_rank)
        return loss


def build_pp(strategy: pp.PipelineParallel, context: RankContext) -> PipelineEngine:
    """Engine of this rank, which holds only its own stages.

    Raises:
        UnsupportedCase: the workload does not declare how to split it, or nothing is trained in a stage with
            replicas.
    """
    if (model := stages_of(context.case)) is None:
        raise UnsupportedCase(undeclared_stages(context.case))
    mesh = strategy.device_mesh(context.world_size)
    line, ranks = PipelineGroup.create(mesh, context.device), mesh.size("pp")
    layer_ms = layer_times.time_layers(context, strategy, model) if strategy.split == "time" else []
    layers = strategy.split_layers(model, ranks, layer_ms)
    own = {
        number: part
        for number, part in enumerate(layers)
        if strategy.schedule_rules.rank_of_stage(number, ranks) == line.rank
    }
    samples = context.case.batch.micro_batch_size // strategy.micro_batches
    between = strategy.activation_shape(model, context.world_size)
    parts, last = build_stage_modules(context, strategy, model, own, line), len(layers) - 1
    stages = []
    for part in parts:
        ends = {"is_first": part.stage_index == 0, "is_last": part.stage_index == last}
        stages.append(
            TimedStage(part, len(layers), context, line, stage_io_tensors(context, between, samples, **ends))
        )
    return PipelineEngine(context, strategy, model, parts, stages, line, layer_ms)
