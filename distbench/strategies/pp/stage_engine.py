"""Engine of a rank that holds some stages of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.engine import TrainingState
from distbench.strategies.pp.pipeline_group import PipelineGroup, TiedWeights, gather_stage_tensors
from distbench.strategies.pp.stages import StageModule, combine_stages
from distbench.strategies.torch_engine import checkpoint, group_tensors, optimizer, readback
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads.stages import PipelineStages
from distbench.workloads.weights import plain_name


class StageEngine(TorchEngine):
    """Some parts of a model; the other ranks of the pipeline hold the others."""

    def __init__(
        self,
        context: RankContext,
        model: PipelineStages,
        parts: list[StageModule],
        pipeline: PipelineGroup,
        end_ranks: tuple[int, int],
    ) -> None:
        super().__init__(context, combine_stages(parts), [layer for part in parts for layer in part.layers])
        self._model, self._pipeline = model, pipeline
        self._tied_weights = TiedWeights(model, self.module, pipeline, end_ranks)

    @property
    def forward_module(self) -> nn.Module:
        # the first stage of this rank; no code calls the module that contains all of them
        return next(self.module.children())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        own = {
            name: parameter.grad if self._scale == 1 else parameter.grad / self._scale
            for name, parameter in self.own_parameters().items()
            if parameter.grad is not None
        }
        return gather_stage_tensors(own, self._context.device, self._pipeline)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters as in the base class; copies of tied weights are yielded as well, for comparison."""
        own = {name: parameter.detach() for name, parameter in self.own_parameters().items()}
        yield from gather_stage_tensors(own, self._context.device, self._pipeline)
        if self._pipeline.rank:
            yield from self._tied_weights.full_copies()

    def grad_norm(self) -> float:
        own = torch.tensor(readback.l2_norm(self._own_gradients()), dtype=torch.float64)
        return float(self._pipeline.combined_norm(own.to(self._context.device))) / self._scale

    def total_norm(self) -> torch.Tensor:
        # a copy of a tied weight is scaled as well, and counts once
        own = readback.full_tensor(nn.utils.get_total_norm(self._own_gradients()))
        # if nothing is trained, torch returns 0 on the host, which NCCL can't reduce
        return self._pipeline.combined_norm(own.double().to(self._context.device)).to(own.dtype)

    def save_sharded(self, folder: Path) -> None:
        updates = optimizer.scheduled_updates(self._scheduler)
        checkpoint.save(self.module, self._optimizer, folder, updates, tied=self._model.tied_names)

    def load_sharded(self, folder: Path) -> None:
        updates = checkpoint.load(self.module, self._optimizer, folder, tied=self._model.tied_names)
        optimizer.restore_schedule(self._scheduler, updates)

    def gather_state(self) -> TrainingState:
        every = checkpoint.gather_optimizer(self.module, self._optimizer, full=False)
        own = {name: moments for name, moments in every.items() if name not in self._tied_weights.copy_names}
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            readback.copy_to_host(gather_stage_tensors(self.buffers(), self._context.device, self._pipeline)),
            group_tensors.gather_nested(own, self._context.device, self._pipeline.group),
            optimizer.scheduled_updates(self._scheduler),
        )

    def scatter_state(self, state: TrainingState) -> None:
        # a rank with both copies would otherwise update the same moments twice: torch does not copy them
        super().scatter_state(group_tensors.add_tied_copies(state, self._model.tied_names))

    def close(self) -> None:
        self._tied_weights.close()

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank by plain name, without copies of tied ones."""
        named = ((plain_name(name), parameter) for name, parameter in self.module.named_parameters())
        return {name: parameter for name, parameter in named if name not in self._tied_weights.copy_names}

    def _own_gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.own_parameters().values() if parameter.grad is not None]
