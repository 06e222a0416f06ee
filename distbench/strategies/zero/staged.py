"""The worker's side of ``zero`` in a pipeline: DeepSpeed's engine of PipelineModule, and reading it back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from torch import nn

from distbench.strategies._pipeline import bubble, in_flight, stages_of, uncut
from distbench.strategies.base import Refused, Setting
from distbench.strategies.engine import FullState
from distbench.strategies.torch_engine import gathering, modules, optimizer, reading, recomputation
from distbench.strategies.torch_engine.stagewise import Whole
from distbench.strategies.zero import Zero, checkpoint, gradients, masters, pieces
from distbench.strategies.zero.config import configuration, for_model
from distbench.strategies.zero.engine import (
    ZeroEngine,
    connect,
    elements,
    started,
)
from distbench.strategies.zero.passes import Passes
from distbench.strategies.zero.pipeline import SCHEDULE, Pipeline
from distbench.strategies.zero.stages import StageLayer, pipeline_of
from distbench.workloads.stages import Stages

T = TypeVar("T")


class StagedEngine(ZeroEngine):
    """DeepSpeed's engine of a pipeline, of which this rank has one stage."""

    def __init__(self, setting: Setting, engine: Any, model: Stages, stage: StageLayer) -> None:
        super().__init__(setting, engine, stage.layers)
        self._model, self._group = model, engine.grid.get_pipe_parallel_group()
        self._passes = Passes(engine, lambda part: self.span(part))
        self._totals = self._counted(stage)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = self._engine.micro_batches
        rows = zip(
            micro_batch[self._model.input].chunk(parts), micro_batch["labels"].chunk(parts), strict=True
        )
        self._passes.begin()
        self._engine.train_batch(rows)
        loss: torch.Tensor = self._engine.dp_group_loss
        return loss.detach()

    def step(self) -> None:
        with self.span("optimizer"):
            self._engine._exec_optimizer_step()

    def grad_norm(self) -> float:
        own = [reading.sum_of_squares(safe_get_full_grad(p)) for p in self._own().values() if p.requires_grad]
        # a stage may have nothing that is trained
        none = torch.zeros((), dtype=torch.float64, device=self._setting.device)
        squares = torch.stack([none, *own]).sum()
        dist.all_reduce(squares, group=self._group)
        return math.sqrt(squares)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        own = {name: parameter for name, parameter in self._own().items() if parameter.requires_grad}
        return self._gathered(own, lambda each: gradients.exact(self._engine, safe_get_full_grad(each)))

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See the base; the last stage gives its copies of tied weights of the first, to be compared."""
        separate = masters.of_stage_0(self._engine)
        yield from self._gathered(self._own(), lambda each: masters.whole(each, separate))
        for name, parameter in pieces.named(self._engine):
            if name in self._model.tied:
                yield self._model.tied[name], masters.whole(parameter, separate)

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        owners = {stage: stage for stage in range(self._group.size())}
        parts = {self._group.rank(): self._engine.module}
        whole = Whole(self._setting, self._group, self._model.between, parts, owners)
        return modules.evaluated(whole, judge)

    def effective(self) -> dict[str, Any]:
        settings, engine = super().effective(), self._engine
        rows = (self._compute.rows or 0) * engine.micro_batches
        samples = rows * pieces.data_ranks(engine)
        return {
            **settings,
            **self._totals,
            "mesh": pieces.mesh(engine),
            "in_flight": self._of_all(self._passes.most_in_flight),
            "micro_batches": engine.micro_batches,
            "micro_batch_size": rows,
            "gradient_accumulation_steps": engine.train_batch_size() // max(1, samples),
        }

    def consolidate(self) -> FullState:
        own = checkpoint.gather_optimizer(self._engine, _on_every_host)
        untied = {name: moments for name, moments in own.items() if name not in self._model.tied}
        device = self._setting.device
        return FullState(
            reading.on_host(self.full_parameters()),
            gathering.nested({"": self.buffers()}, device, self._group).get("", {}),
            gathering.nested(untied, device, self._group),
            optimizer.scheduled_updates(self._engine.lr_scheduler),
        )

    def _spread(self, state: FullState) -> None:
        super()._spread(gathering.with_copies(state, self._model.tied))

    def _own(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank by plain name, without copies of tied ones."""
        return {name: each for name, each in pieces.named(self._engine) if name not in self._model.tied}

    def _gathered(
        self, own: dict[str, nn.Parameter], whole: Callable[[nn.Parameter], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        kinds = {name: (parameter.shape, torch.float32) for name, parameter in own.items()}
        return gathering.gathered(kinds, lambda name: whole(own[name]), self._setting.device, self._group)

    def _of_all(self, own: T) -> list[T]:
        """What each stage gives as *own*. A collective call."""
        given: list[Any] = [None] * self._group.size()
        dist.all_gather_object(given, own, group=self._group)
        return given

    def _counted(self, stage: StageLayer) -> dict[str, Any]:
        """What the live modules of all stages have together, and the schedule's theory."""
        parts = self._engine.micro_batches
        recomputed = recomputation.describe_checkpointing(self._engine.module)["checkpointed_layers"]
        counts = {**reading.counts(self._own().values()), "checkpointed_layers": recomputed}
        given, stages = self._of_all(counts), range(self._engine.num_stages)
        return {
            **{key: sum(counted[key] for counted in given) for key in counts},
            "schedule": SCHEDULE,
            "stages": len(stages),
            "layers_of_stages": self._of_all(len(stage.layers)),
            "in_flight_theory": [in_flight(each, len(stages), parts) for each in stages],
            "bubble_theory": bubble(len(stages), parts),
        }


def _on_every_host(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors}


def build_staged(strategy: Zero, pipeline: Pipeline, setting: Setting) -> StagedEngine:
    """Engine of this rank.

    Raises:
        Refused: the workload does not say how it is cut, or nothing is trained in this rank's stage.
    """
    if (model := stages_of(setting.case)) is None:
        raise Refused(uncut(setting.case))
    config = configuration(strategy, setting.case, for_model(strategy, elements(setting.workload)))
    connect(strategy, setting.case)
    module = pipeline_of(setting, model, pipeline.layers(setting.case), pipeline.micro_batches)
    (stage,) = module.forward_funcs
    if strategy.stage and not any(parameter.requires_grad for parameter in module.parameters()):
        # found with 0.19.8: IndexError: list index out of range
        raise Refused(
            f"pipeline stage {module.stage_id} has no trained parameter, and DeepSpeed's ZeRO fails without "
            "one; use stage: 0, pp: {mesh: {dp_shard: 2}}, or fewer pipeline stages"
        )
    return StagedEngine(setting, started(strategy, setting, config, module, stage.layers), model, stage)
