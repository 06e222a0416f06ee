"""Engine of ``zero`` in a pipeline, in the worker: DeepSpeed's PipelineModule, and its settings read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from torch import nn

from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.engine import TrainingState
from distbench.strategies.theory.pipeline_parallelism import (
    activations_in_flight,
    bubble_fraction,
    stages_of,
    undeclared_stages,
)
from distbench.strategies.torch_engine import group_tensors, modules, optimizer, readback
from distbench.strategies.torch_engine.stagewise import StagedModel
from distbench.strategies.zero import Zero, checkpoint, live_state
from distbench.strategies.zero.build import init_distributed, initialize_deepspeed, model_sizes
from distbench.strategies.zero.config import configuration, sizes_for_model
from distbench.strategies.zero.engine import ZeroEngine
from distbench.strategies.zero.pipeline import DEEPSPEED_SCHEDULE, DeepSpeedPipeline
from distbench.strategies.zero.pipeline_stages import PipelineInstructions, StageLayer, pipeline_module
from distbench.workloads.stages import PipelineStages

T = TypeVar("T")


class ZeroPipelineEngine(ZeroEngine):
    """DeepSpeed's engine of a pipeline; this rank has one of its stages."""

    def __init__(self, context: RankContext, engine: Any, model: PipelineStages, stage: StageLayer) -> None:
        super().__init__(context, engine, stage.layers)
        self._model, self._group = model, engine.grid.get_pipe_parallel_group()
        self._instructions = PipelineInstructions(engine, lambda part: self.span(part))
        self._pipeline_totals = self._count_totals(stage)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = self._engine.micro_batches
        rows = zip(
            micro_batch[self._model.input_array].chunk(parts), micro_batch["labels"].chunk(parts), strict=True
        )
        self._instructions.reset()
        self._engine.train_batch(rows)
        loss: torch.Tensor = self._engine.dp_group_loss
        return loss.detach()

    def step(self) -> None:
        with self.span("optimizer"):
            self._engine._exec_optimizer_step()

    def grad_norm(self) -> float:
        own = [
            readback.sum_of_squares(safe_get_full_grad(p))
            for p in self._own_parameters().values()
            if p.requires_grad
        ]
        # a stage may have nothing to train
        none = torch.zeros((), dtype=torch.float64, device=self._context.device)
        squares = torch.stack([none, *own]).sum()
        dist.all_reduce(squares, group=self._group)
        return math.sqrt(squares)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        own = {
            name: parameter for name, parameter in self._own_parameters().items() if parameter.requires_grad
        }
        return self._gather_tensors(
            own, lambda each: live_state.unscale(self._engine, safe_get_full_grad(each))
        )

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters as in the base class; the last stage adds its copies of tied weights, for comparison."""
        separate = live_state.unlinked_masters(self._engine)
        yield from self._gather_tensors(
            self._own_parameters(), lambda each: live_state.full_master(each, separate)
        )
        for name, parameter in live_state.named_parameters(self._engine):
            if name in self._model.tied_names:
                yield self._model.tied_names[name], live_state.full_master(parameter, separate)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        owners = {stage: stage for stage in range(self._group.size())}
        parts = {self._group.rank(): self._engine.module}
        whole = StagedModel(self._context, self._group, self._model.activation_shape, parts, owners)
        return modules.run_evaluation(whole, score)

    def effective_settings(self) -> dict[str, Any]:
        settings, engine = super().effective_settings(), self._engine
        rows = (self._probe.samples or 0) * engine.micro_batches
        samples = rows * live_state.data_parallel_size(engine)
        return {
            **settings,
            **self._pipeline_totals,
            "mesh": live_state.mesh_sizes(engine),
            "in_flight": self._gather_per_stage(self._instructions.max_in_flight),
            "micro_batches": engine.micro_batches,
            "micro_batch_size": rows,
            "gradient_accumulation_steps": engine.train_batch_size() // max(1, samples),
        }

    def gather_state(self) -> TrainingState:
        own = checkpoint.gather_optimizer(self._engine, _copy_to_own_host)
        untied = {name: moments for name, moments in own.items() if name not in self._model.tied_names}
        device = self._context.device
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            group_tensors.gather_nested({"": self.buffers()}, device, self._group).get("", {}),
            group_tensors.gather_nested(untied, device, self._group),
            optimizer.scheduled_updates(self._engine.lr_scheduler),
        )

    def _scatter_state(self, state: TrainingState) -> None:
        super()._scatter_state(group_tensors.add_tied_copies(state, self._model.tied_names))

    def _own_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank by plain name, without copies of tied ones."""
        return {
            name: each
            for name, each in live_state.named_parameters(self._engine)
            if name not in self._model.tied_names
        }

    def _gather_tensors(
        self, own: dict[str, nn.Parameter], whole: Callable[[nn.Parameter], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        kinds = {name: (parameter.shape, torch.float32) for name, parameter in own.items()}
        return group_tensors.gather_to_first(
            kinds, lambda name: whole(own[name]), self._context.device, self._group
        )

    def _gather_per_stage(self, own: T) -> list[T]:
        """The value of *own* of each stage. Collective call."""
        given: list[Any] = [None] * self._group.size()
        dist.all_gather_object(given, own, group=self._group)
        return given

    def _count_totals(self, stage: StageLayer) -> dict[str, Any]:
        """Totals of the live modules over all stages, and the schedule's theory."""
        parts = self._engine.micro_batches
        recomputed = modules.describe_checkpointing(self._engine.module)["checkpointed_layers"]
        counts = {
            **readback.parameter_counts(self._own_parameters().values()),
            "checkpointed_layers": recomputed,
        }
        given, stages = self._gather_per_stage(counts), range(self._engine.num_stages)
        return {
            **{key: sum(counted[key] for counted in given) for key in counts},
            "schedule": DEEPSPEED_SCHEDULE,
            "stages": len(stages),
            "layers_of_stages": self._gather_per_stage(len(stage.layers)),
            "in_flight_theory": [activations_in_flight(each, len(stages), parts) for each in stages],
            "bubble_theory": bubble_fraction(len(stages), parts),
        }


def _copy_to_own_host(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors}


def build_pipeline(strategy: Zero, pipeline: DeepSpeedPipeline, context: RankContext) -> ZeroPipelineEngine:
    """Engine of this rank.

    Raises:
        UnsupportedCase: the workload does not declare how to split it, or nothing is trained in this rank's
            stage.
    """
    if (model := stages_of(context.case)) is None:
        raise UnsupportedCase(undeclared_stages(context.case))
    config = configuration(strategy, context.case, sizes_for_model(strategy, model_sizes(context.workload)))
    init_distributed(strategy, context.case)
    module = pipeline_module(context, model, pipeline.split_layers(context.case), pipeline.micro_batches)
    (stage,) = module.forward_funcs
    if strategy.stage and not any(parameter.requires_grad for parameter in module.parameters()):
        # found with 0.19.8: IndexError: list index out of range
        raise UnsupportedCase(
            f"pipeline stage {module.stage_id} has no trained parameter, and DeepSpeed's ZeRO fails without "
            "one; use stage: 0, pp: {mesh: {dp_shard: 2}}, or fewer pipeline stages"
        )
    return ZeroPipelineEngine(
        context, initialize_deepspeed(strategy, context, config, module, stage.layers), model, stage
    )
