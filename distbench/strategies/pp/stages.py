"""Stages of this rank: modules with their weights, and torch's objects that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.pipeline_group import PipelineGroup
from distbench.strategies.torch_engine import layer_sharding, tensor_parallel
from distbench.strategies.torch_engine.modules import prepare_layers, prepare_module
from distbench.workloads import weights
from distbench.workloads.stages import PipelineStages
from distbench.workloads.weights import DTYPES

Span = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class StageModule:
    """A stage as a module."""

    stage_index: int
    module: nn.Module
    layers: list[nn.Module]


def build_stage_modules(
    context: RankContext,
    strategy: PipelineParallel,
    model: PipelineStages,
    layers: Mapping[int, range],
    pipeline: PipelineGroup,
) -> list[StageModule]:
    """Stages of this rank with their weights; *layers* has the layers of each stage by its number.

    Raises:
        UnsupportedCase: nothing is trained in a stage that needs replicas.
    """
    workload, mesh = context.workload, strategy.device_mesh(context.world_size)
    whole, made = weights.cast(weights.meta_module(workload), DTYPES[context.case.precision.master]), []
    if mesh.size("tp") > 1:
        tensor_parallel.check_plan(whole, workload)
    for number, own in layers.items():
        part = workload.build_stage(whole, own)
        if mesh.size("tp") > 1:
            sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
            tensor_parallel.parallelize_stage(
                part, workload, pipeline.device_mesh["tp"], sequence_parallel=sequence, loss_parallel=loss
            )
        wrap = (
            _shard_stage
            if mesh.size("dp_shard") > 1
            else _replicate_stage
            if mesh.data_ranks > 1
            else _plain_stage
        )
        if wrap is _replicate_stage and not any(each.requires_grad for each in part.parameters()):
            raise UnsupportedCase(
                f"pipeline stage {number} has no trained parameter, and torch's DDP refuses such a module; "
                f"use mesh: {{dp_shard: {mesh.data_ranks}}} instead of dp_replicate, or fewer pipeline stages"
            )
        made.append(StageModule(number, *wrap(context, strategy, model, part, pipeline)))
    return made


WrappedStage = tuple[nn.Module, list[nn.Module]]


def _shard_stage(
    context: RankContext,
    strategy: PipelineParallel,
    model: PipelineStages,
    part: nn.Module,
    pipeline: PipelineGroup,
) -> WrappedStage:
    layers = prepare_layers(context.case, part, context.workload.layers(part))
    names = [name for name in DATA_DIMENSIONS if name in (pipeline.device_mesh.mesh_dim_names or ())]
    again = strategy.reshard_after_forward
    layer_sharding.shard_module(
        part, layers, pipeline.device_mesh[tuple(names)], context.case.precision, reshard=again
    )
    return load_stage(context, model, part), layers


def _replicate_stage(
    context: RankContext,
    strategy: PipelineParallel,
    model: PipelineStages,
    part: nn.Module,
    pipeline: PipelineGroup,
) -> WrappedStage:
    module, layers = _plain_stage(context, strategy, model, part, pipeline)
    devices = [context.device] if context.device.type == "cuda" else None
    group = pipeline.device_mesh.get_group("dp_replicate")
    return DistributedDataParallel(module, device_ids=devices, process_group=group), layers


def _plain_stage(
    context: RankContext,
    _strategy: PipelineParallel,
    model: PipelineStages,
    part: nn.Module,
    _line: PipelineGroup,
) -> WrappedStage:
    module = load_stage(context, model, part)
    return module, prepare_module(context, module)


def load_stage(context: RankContext, model: PipelineStages, part: nn.Module) -> nn.Module:
    """*part* on the device, with its weights."""
    on_meta = context.workload.on_meta
    part = part.to_empty(device=context.device) if on_meta else part.to(context.device)
    weights.load_stage(part, context.weights_file, model.tied_names)
    return part


def combine_stages(parts: Iterable[StageModule]) -> nn.Module:
    """One module of all *parts*, in which parameters have their plain names."""
    module = nn.Module()
    for part in parts:
        module.add_module(f"{weights.STAGE_PREFIX}{part.stage_index}", part.module)
    return module


class TimedStage(PipelineStage):
    """A stage that marks its forward and backward passes, which the schedule calls in its own order."""

    def __init__(
        self,
        part: StageModule,
        stages: int,
        context: RankContext,
        pipeline: PipelineGroup,
        shapes: tuple[Any, Any],
    ) -> None:
        # with given shapes; otherwise torch would run an extra forward and backward pass to infer them
        super().__init__(part.module, part.stage_index, stages, context.device, *shapes, group=pipeline.group)
        self.layer_count = len(part.layers)
        self.span: Span | None = None
        """Marks a part of a step."""
        self.in_flight: set[int] = set()
        """Micro-batches that ran forward, and whose backward pass is not complete."""
        self.max_in_flight = 0
        self.is_last_micro_batch = True
        """True if the current micro-batches end a step, so that DDP has to reduce."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch forward."""
        self.in_flight.add(fwd_chunk_id)
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        with self._pass_span("forward", "F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run one micro-batch backward, in full or only for its activations."""
        with self._pass_span("backward", "B" if full_backward else "I", bwd_chunk_id):
            super().backward_one_chunk(
                bwd_chunk_id, loss, full_backward, last_backward and self.is_last_micro_batch
            )
        if full_backward:
            self.in_flight.discard(bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Compute the gradients of weights of one micro-batch."""
        with self._pass_span("backward", "W", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self.in_flight.discard(bwd_chunk_id)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduce the gradients of all micro-batches, if they are sharded."""
        assert self.span is not None, "an engine has set it"
        with self.span("backward"):
            super().perform_reduce_grad(grad_scale_factor)

    def buffers(self) -> list[torch.Tensor | None]:
        """Receive buffers of every micro-batch."""
        received = [*self.args_recv_info.values(), *self.grad_recv_info.values()]
        return [info.buffer for infos in received for info in infos]

    @contextmanager
    def _pass_span(self, part: str, kind: str, micro_batch: int) -> Iterator[None]:
        """Context around a pass: a part of the step, and inside it torch's name of the pass."""
        assert self.span is not None, "an engine has set it"
        with self.span(f"{self.stage_index}{kind}{micro_batch}"), self.span(part):
            yield


def stage_io_tensors(
    context: RankContext, activation_shape: tuple[int, ...], samples: int, *, is_first: bool, is_last: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and output of a stage for *samples* samples, as tensors without memory.

    *activation_shape* is the shape, per sample, of the activations sent from a rank to the next.
    """
    shape, compute = context.workload.shape, DTYPES[context.case.precision.compute]
    passed = torch.empty(samples, *activation_shape, dtype=compute, device="meta", requires_grad=True)
    taken = torch.int64 if shape.takes_ids else torch.float32
    read = torch.empty(samples, *shape.input_shape, dtype=taken, device="meta")
    given = (samples, *shape.label_shape, shape.classes)
    logits = torch.empty(given, dtype=compute, device="meta", requires_grad=True)
    return read if is_first else passed, logits if is_last else passed
