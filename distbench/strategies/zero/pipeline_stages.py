"""The stages of DeepSpeed's pipeline, each as one layer of its PipelineModule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import forwards, modules
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.stagewise import KnownOutput
from distbench.strategies.zero.engine import dtypes
from distbench.workloads import weights
from distbench.workloads.stages import PipelineStages

_TIE_KEY = "tied"
"""DeepSpeed's key of the layers that have the same weights: the first stage and the last."""


class StageLayer(nn.Module):
    """A stage with its weights, in the dtype of the computation."""

    def __init__(self, context: RankContext, model: PipelineStages, own: range) -> None:
        super().__init__()
        workload, (self._compute, master) = context.workload, dtypes(context.case)
        # DeepSpeed makes it of this dtype, and master weights of that; the weights were rounded through it
        whole = weights.cast(weights.meta_module(workload), self._compute, buffers=master)
        part = workload.build_stage(whole, own)
        part = part.to_empty(device=context.device) if workload.on_meta else part.to(context.device)
        weights.load_stage(part, context.weights_file, model.tied_names)
        self.layers = modules.prepare_layers(context.case, part, workload.layers(part))
        # by the name that wrappers have, so that tensors in it have their plain names
        self.module = part

    def forward(self, passed: torch.Tensor) -> Any:
        """What the stage gives; DeepSpeed leaves a batch of floats as it is."""
        return self.module(forwards.cast_floats(passed, self._compute))


def pipeline_module(
    context: RankContext, model: PipelineStages, layers: Sequence[range], chunks: int
) -> PipelineModule:
    """DeepSpeed's module, in which this rank has one of the stages with *layers*. A collective call.

    *chunks* is the number of parts in which a micro-batch passes through it.
    """
    ends: dict[int, list[str]] = {0: list(model.tied_names.values()), len(layers) - 1: list(model.tied_names)}
    loss = GlobalMean(context, chunks=chunks)
    module = PipelineModule(
        [_layer_spec(context, model, own, ends.get(stage, [])) for stage, own in enumerate(layers)],
        num_stages=len(layers),
        loss_fn=lambda output, labels: loss(
            KnownOutput(output), {model.input_array: labels, "labels": labels}
        ),
        # one of ours is one of its stages
        partition_method="uniform",
    )
    # only ranks that have the last stage compute it
    loss.groups = [module.mpu().get_data_parallel_group()]
    _mark_replicated(module, model)
    return module


def _layer_spec(context: RankContext, model: PipelineStages, own: range, tied: Sequence[str]) -> LayerSpec:
    """What DeepSpeed makes a stage of, on the ranks that have it; *tied* are its weights of another one."""
    if not tied:
        return LayerSpec(StageLayer, context, model, own)
    names = [f"module.{name}" for name in tied]
    return TiedLayerSpec(_TIE_KEY, StageLayer, context, model, own, tied_weight_attr=names)


def _mark_replicated(module: PipelineModule, model: PipelineStages) -> None:
    """Let the norm of all gradients leave out copies of tied weights.

    DeepSpeed takes all of a tied layer for a copy, which is more than what is tied of the last stage.
    """
    for name, parameter in module.named_parameters():
        parameter.ds_pipe_replicated = any(name.endswith(f"module.{copy}") for copy in model.tied_names)
