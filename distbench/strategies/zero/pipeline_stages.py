"""Stages of DeepSpeed's pipeline as layers of its module, and the instructions that run their passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe import schedule
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.engine import SpanMarker
from distbench.strategies.torch_engine import forwards, modules
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.stagewise import KnownOutput
from distbench.strategies.zero.build import dtypes
from distbench.workloads import weights
from distbench.workloads.stages import PipelineStages

_TIE_KEY = "tied"
"""DeepSpeed's key of layers with the same weights: the first stage and the last."""


class StageLayer(nn.Module):
    """A stage with its weights, in the dtype of the computation."""

    def __init__(self, context: RankContext, model: PipelineStages, own: range) -> None:
        super().__init__()
        workload, (self._compute, master) = context.workload, dtypes(context.case)
        # DeepSpeed makes master weights from this dtype, through which the initial weights were rounded
        whole = weights.cast(weights.meta_module(workload), self._compute, buffers=master)
        part = workload.build_stage(whole, own)
        part = part.to_empty(device=context.device) if workload.on_meta else part.to(context.device)
        weights.load_stage(part, context.weights_file, model.tied_names)
        self.layers = modules.prepare_layers(context.case, part, workload.layers(part))
        # named as in wrappers, so that its tensors have their plain names
        self.module = part

    def forward(self, passed: torch.Tensor) -> Any:
        """Output of the stage; DeepSpeed does not convert a batch of floats."""
        return self.module(forwards.cast_floats(passed, self._compute))


def pipeline_module(
    context: RankContext, model: PipelineStages, layers: Sequence[range], chunks: int
) -> PipelineModule:
    """DeepSpeed's module, in which this rank has one of the stages with *layers*. Collective call.

    *chunks* is the number of parts into which a micro-batch is split.
    """
    ends: dict[int, list[str]] = {0: list(model.tied_names.values()), len(layers) - 1: list(model.tied_names)}
    loss = GlobalMean(context, chunks=chunks)
    module = PipelineModule(
        [_layer_spec(context, model, own, ends.get(stage, [])) for stage, own in enumerate(layers)],
        num_stages=len(layers),
        loss_fn=lambda output, labels: loss(
            KnownOutput(output), {model.input_array: labels, "labels": labels}
        ),
        # one layer of DeepSpeed's module is one stage
        partition_method="uniform",
    )
    # only ranks with the last stage compute it
    loss.groups = [module.mpu().get_data_parallel_group()]
    _mark_replicated(module, model)
    return module


def _layer_spec(context: RankContext, model: PipelineStages, own: range, tied: Sequence[str]) -> LayerSpec:
    """Specification from which DeepSpeed builds a stage on its ranks; *tied* are weights of another stage."""
    if not tied:
        return LayerSpec(StageLayer, context, model, own)
    names = [f"module.{name}" for name in tied]
    return TiedLayerSpec(_TIE_KEY, StageLayer, context, model, own, tied_weight_attr=names)


def _mark_replicated(module: PipelineModule, model: PipelineStages) -> None:
    """Exclude copies of tied weights from the norm of all gradients.

    DeepSpeed takes all of a tied layer for a copy, which is more than the tied weights of the last stage.
    """
    for name, parameter in module.named_parameters():
        parameter.ds_pipe_replicated = any(name.endswith(f"module.{copy}") for copy in model.tied_names)


class PipelineInstructions:
    """Replaces the instructions of an engine's pipeline schedule.

    ``train_batch`` runs a full step; the caller runs its update, because gradients are read before it.
    """

    def __init__(self, engine: Any, span: SpanMarker) -> None:
        """Replace the instructions of *engine*; *span* marks a part of a step."""
        self.max_in_flight = 0
        """Maximum number of micro-batches that ran forward and not yet backward."""
        self._span, self._stage = span, engine.stage_id
        self._counts = {"F": 0, "B": 0}
        known = dict(type(engine)._INSTRUCTION_MAP)
        engine._INSTRUCTION_MAP = {
            **known,
            schedule.ForwardPass: self._timed_pass("F", "forward", known[schedule.ForwardPass]),
            schedule.BackwardPass: self._timed_pass("B", "backward", known[schedule.BackwardPass]),
            schedule.ReduceTiedGrads: self._timed_backward(known[schedule.ReduceTiedGrads]),
            schedule.ReduceGrads: self._timed_backward(known[schedule.ReduceGrads]),
            schedule.OptimizerStep: lambda _engine: None,
        }

    def reset(self) -> None:
        """Restart the micro-batch numbers at 0."""
        self._counts = {"F": 0, "B": 0}

    def _timed_pass(self, kind: str, part: str, execute: Callable[..., None]) -> Callable[..., None]:
        """Mark a pass with torch's name of it: ``1F2`` is stage 1, forward, micro-batch 2."""

        def marked(engine: Any, **arguments: Any) -> None:
            with self._span(f"{self._stage}{kind}{self._counts[kind]}"), self._span(part):
                execute(engine, **arguments)
            self._counts[kind] += 1
            self.max_in_flight = max(self.max_in_flight, self._counts["F"] - self._counts["B"])

        return marked

    def _timed_backward(self, execute: Callable[..., None]) -> Callable[..., None]:
        def marked(engine: Any) -> None:
            with self._span("backward"):
                execute(engine)

        return marked
