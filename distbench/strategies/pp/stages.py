"""The stages of this rank: modules with their weights, and torch's objects that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from distbench.core.meshes import OF_DATA
from distbench.strategies.base import Refused, Setting
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.line import Line
from distbench.strategies.torch_engine import sharding, tensor_parallel
from distbench.strategies.torch_engine.modules import computing_layers, prepared_layers
from distbench.workloads import weights
from distbench.workloads.stages import Stages
from distbench.workloads.weights import DTYPES

Span = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Part:
    """A stage as a module."""

    number: int
    module: nn.Module
    layers: list[nn.Module]


def parts_of(
    setting: Setting, strategy: PipelineParallel, model: Stages, layers: Mapping[int, range], line: Line
) -> list[Part]:
    """Stages of this rank with their weights; *layers* has those of each by its number.

    Raises:
        Refused: nothing is trained in one of which there are to be replicas.
    """
    workload, mesh = setting.workload, strategy.sizes(setting.world_size)
    whole, made = weights.cast(weights.skeleton(workload), DTYPES[setting.case.precision.master]), []
    if mesh.size("tp") > 1:
        tensor_parallel.check(whole, workload)
    for number, own in layers.items():
        part = workload.stage(whole, own)
        if mesh.size("tp") > 1:
            sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
            tensor_parallel.split_part(part, workload, line.mesh["tp"], sequence=sequence, loss=loss)
        wrap = _sharded if mesh.size("dp_shard") > 1 else _replicated if mesh.data_ranks > 1 else _alone
        if wrap is _replicated and not any(each.requires_grad for each in part.parameters()):
            raise Refused(
                f"pipeline stage {number} has no trained parameter, and torch's DDP refuses such a module; "
                f"use mesh: {{dp_shard: {mesh.data_ranks}}} instead of dp_replicate, or fewer pipeline stages"
            )
        made.append(Part(number, *wrap(setting, strategy, model, part, line)))
    return made


Wrapped = tuple[nn.Module, list[nn.Module]]


def _sharded(
    setting: Setting, strategy: PipelineParallel, model: Stages, part: nn.Module, line: Line
) -> Wrapped:
    layers = prepared_layers(setting.case, part, setting.workload.layers(part))
    names = [name for name in OF_DATA if name in (line.mesh.mesh_dim_names or ())]
    again = strategy.reshard_after_forward
    sharding.shard(part, layers, line.mesh[tuple(names)], setting.case.precision, again=again)
    return with_weights(setting, model, part), layers


def _replicated(
    setting: Setting, strategy: PipelineParallel, model: Stages, part: nn.Module, line: Line
) -> Wrapped:
    module, layers = _alone(setting, strategy, model, part, line)
    devices = [setting.device] if setting.device.type == "cuda" else None
    group = line.mesh.get_group("dp_replicate")
    return DistributedDataParallel(module, device_ids=devices, process_group=group), layers


def _alone(
    setting: Setting, _strategy: PipelineParallel, model: Stages, part: nn.Module, _line: Line
) -> Wrapped:
    module = with_weights(setting, model, part)
    return module, computing_layers(setting, module)


def with_weights(setting: Setting, model: Stages, part: nn.Module) -> nn.Module:
    """*part* on the device, with its weights."""
    on_meta = setting.workload.on_meta
    part = part.to_empty(device=setting.device) if on_meta else part.to(setting.device)
    weights.load_part(part, setting.weights, model.tied)
    return part


def held(parts: Iterable[Part]) -> nn.Module:
    """One module of all *parts*, in which parameters have their plain names."""
    module = nn.Module()
    for part in parts:
        module.add_module(f"{weights.STAGE}{part.number}", part.module)
    return module


class Stage(PipelineStage):
    """A stage that marks its forward and backward passes, which the schedule calls in its own order."""

    def __init__(
        self, part: Part, stages: int, setting: Setting, line: Line, shapes: tuple[Any, Any]
    ) -> None:
        # shapes are given: torch would run a forward and a backward pass more to learn them
        super().__init__(part.module, part.number, stages, setting.device, *shapes, group=line.group)
        self.layers = len(part.layers)
        self.span: Span | None = None
        """Marks a part of a step."""
        self.in_flight: set[int] = set()
        """Micro-batches that went forward and not yet all of the way back."""
        self.most_in_flight = 0
        self.ends_step = True
        """Whether the micro-batches that come end a step, so that DDP has to reduce."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch forward."""
        self.in_flight.add(fwd_chunk_id)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        with self._marked("forward", "F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run one micro-batch backward, or as far as its activations."""
        with self._marked("backward", "B" if full_backward else "I", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward and self.ends_step)
        if full_backward:
            self.in_flight.discard(bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Compute the gradients of weights of one micro-batch."""
        with self._marked("backward", "W", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self.in_flight.discard(bwd_chunk_id)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduce the gradients of all micro-batches, if they are sharded."""
        assert self.span is not None, "an engine has set it"
        with self.span("backward"):
            super().perform_reduce_grad(grad_scale_factor)

    def buffers(self) -> list[torch.Tensor | None]:
        """What it receives into, for every micro-batch."""
        received = [*self.args_recv_info.values(), *self.grad_recv_info.values()]
        return [info.buffer for infos in received for info in infos]

    @contextmanager
    def _marked(self, part: str, kind: str, micro_batch: int) -> Iterator[None]:
        """Context around a pass, a part of the step that bears torch's name of the pass inside."""
        assert self.span is not None, "an engine has set it"
        with self.span(f"{self.stage_index}{kind}{micro_batch}"), self.span(part):
            yield


def shapes_of(
    setting: Setting, between: tuple[int, ...], samples: int, *, is_first: bool, is_last: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a stage takes and gives of *samples* samples, as tensors without memory.

    *between* is the shape of what passes from a rank to the next of one sample.
    """
    shape, compute = setting.workload.shape, DTYPES[setting.case.precision.compute]
    passed = torch.empty(samples, *between, dtype=compute, device="meta", requires_grad=True)
    taken = torch.int64 if shape.takes_ids else torch.float32
    read = torch.empty(samples, *shape.input_shape, dtype=taken, device="meta")
    given = (samples, *shape.label_shape, shape.classes)
    logits = torch.empty(given, dtype=compute, device="meta", requires_grad=True)
    return read if is_first else passed, logits if is_last else passed
