"""The stages of DeepSpeed's pipeline, each as one layer of its PipelineModule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import forwards, modules
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.stagewise import Computed
from distbench.strategies.zero.engine import dtypes
from distbench.workloads import weights
from distbench.workloads.stages import Stages

_TIED = "tied"
"""DeepSpeed's key of the layers that have the same weights: the first stage and the last."""


class StageLayer(nn.Module):
    """A stage with its weights, in the dtype of the computation."""

    def __init__(self, setting: Setting, model: Stages, own: range) -> None:
        super().__init__()
        workload, (self._compute, master) = setting.workload, dtypes(setting.case)
        # DeepSpeed makes it of this dtype, and master weights of that; the weights were rounded through it
        whole = weights.cast(weights.skeleton(workload), self._compute, buffers=master)
        part = workload.stage(whole, own)
        part = part.to_empty(device=setting.device) if workload.on_meta else part.to(setting.device)
        weights.load_part(part, setting.weights, model.tied)
        self.layers = modules.prepared_layers(setting.case, part, workload.layers(part))
        # by the name that wrappers have, so that tensors in it have their plain names
        self.module = part

    def forward(self, passed: torch.Tensor) -> Any:
        """What the stage gives; DeepSpeed leaves a batch of floats as it is."""
        return self.module(forwards.cast_floats(passed, self._compute))


def pipeline_of(setting: Setting, model: Stages, layers: Sequence[range], chunks: int) -> PipelineModule:
    """DeepSpeed's module, in which this rank has one of the stages with *layers*. A collective call.

    *chunks* is the number of parts in which a micro-batch passes through it.
    """
    ends: dict[int, list[str]] = {0: list(model.tied.values()), len(layers) - 1: list(model.tied)}
    loss = GlobalMean(setting, chunks=chunks)
    module = PipelineModule(
        [_spec(setting, model, own, ends.get(stage, [])) for stage, own in enumerate(layers)],
        num_stages=len(layers),
        loss_fn=lambda output, labels: loss(Computed(output), {model.input: labels, "labels": labels}),
        # one of ours is one of its stages
        partition_method="uniform",
    )
    # only ranks that have the last stage compute it
    loss.groups = [module.mpu().get_data_parallel_group()]
    _count_once(module, model)
    return module


def _spec(setting: Setting, model: Stages, own: range, tied: Sequence[str]) -> LayerSpec:
    """What DeepSpeed makes a stage of, on the ranks that have it; *tied* are its weights of another one."""
    if not tied:
        return LayerSpec(StageLayer, setting, model, own)
    names = [f"module.{name}" for name in tied]
    return TiedLayerSpec(_TIED, StageLayer, setting, model, own, tied_weight_attr=names)


def _count_once(module: PipelineModule, model: Stages) -> None:
    """Let the norm of all gradients leave out copies of tied weights.

    DeepSpeed takes all of a tied layer for a copy, which is more than what is tied of the last stage.
    """
    for name, parameter in module.named_parameters():
        parameter.ds_pipe_replicated = any(name.endswith(f"module.{copy}") for copy in model.tied)
