"""The ranks of one pipeline, and the tensors that they exchange: tied weights, and those of all stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from distbench.core.meshes import MeshShape
from distbench.strategies.torch_engine import device_meshes, group_tensors
from distbench.strategies.torch_engine.group_tensors import Key
from distbench.strategies.torch_engine.readback import full_tensor
from distbench.workloads.stages import PipelineStages
from distbench.workloads.weights import plain_name


@dataclass(frozen=True)
class PipelineGroup:
    """Ranks with the stages of one replica of the model, in the order of their stages."""

    device_mesh: DeviceMesh
    """Mesh of all ranks, with the dimension ``pp``."""

    @classmethod
    def create(cls, mesh: MeshShape, device: torch.device) -> PipelineGroup:
        """The pipeline of this rank in *mesh*. Collective call."""
        line = cls(device_meshes.init_mesh(mesh.sizes, device))
        if device.type == "cuda":
            # with given shapes, torch 2.13 connects pairs first, and the whole group only when some rank
            # sends and receives at once, in the middle of a schedule (a TODO in ``_warmup_p2p``)
            dist.all_reduce(torch.zeros(1, device=device), group=line.group)
        return line

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of its ranks, for collective calls over all stages."""
        return self.device_mesh.get_group("pp")

    @property
    def size(self) -> int:
        """Number of its ranks."""
        return self.group.size()

    @property
    def rank(self) -> int:
        """Position of this rank in it."""
        return self.group.rank()

    def end_group(self, places: Sequence[int]) -> dist.ProcessGroup | None:
        """New group of the ranks at positions *places*; None on other ranks. Collective call of all."""
        # one dimension after another: a column of the table is a pipeline
        lines = self.device_mesh.mesh.reshape(self.size, -1).T.tolist()
        mine = None
        for ranks in lines:
            # all ranks create the groups of all pipelines, as torch requires
            made = dist.new_group([ranks[place] for place in places])
            if dist.get_rank() in ranks and self.rank in places:
                mine = made
        return mine

    def all_gather_object(self, own: Any) -> list[Any]:
        """The objects *own* of all ranks of the pipeline, by position. Collective call."""
        given: list[Any] = [None] * self.size
        dist.all_gather_object(given, own, group=self.group)
        return given

    def combined_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """L2 norm over all its ranks; *norm* is this rank's. Collective call."""
        square = norm.square()
        dist.all_reduce(square, group=self.group)
        return square.sqrt()


class TiedWeights:
    """Tied weights of which the first and the last stage each have a copy.

    Both copies stay equal: they start equal, and each is updated by the sum of both gradients.
    """

    def __init__(
        self, model: PipelineStages, module: nn.Module, pipeline: PipelineGroup, end_ranks: tuple[int, int]
    ) -> None:
        """Find the copies in *module*, which holds the stages of this rank. Collective call.

        Args:
            end_ranks: Positions in *pipeline* of the ranks with the first and the last stage.
        """
        self._tied = model.tied_names
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        self._pairs = [(named.get(plain), named.get(copy)) for copy, plain in model.tied_names.items()]
        self.copy_names = frozenset(model.tied_names)
        """Plain names of the copies, which the full model does not have."""
        is_apart = bool(model.tied_names) and end_ranks[0] != end_ranks[1]
        self._group = pipeline.end_group(sorted(end_ranks)) if is_apart else None

    def sum_gradients(self) -> None:
        """Set the gradients of both copies to their sum. Collective call of the ranks that have them."""
        for first, last in self._pairs:
            if first is not None and last is not None:
                ours, theirs = _gradient(first), _gradient(last)
                theirs.add_(ours)
                ours.copy_(theirs)
            elif (own := first if last is None else last) is not None:
                dist.all_reduce(_gradient(own), group=self._group)

    def full_copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's copies of weights of the first stage, in full, under the names of the originals."""
        for plain, (first, last) in zip(self._tied.values(), self._pairs, strict=True):
            if first is None and last is not None:
                yield plain, full_tensor(last.detach())

    def close(self) -> None:
        """Release the group of both ends."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's part of the gradient: both copies are sharded alike."""
    gradient = parameter.grad
    assert gradient is not None, "after a backward pass"
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def gather_stage_tensors(
    tensors: Mapping[Key, torch.Tensor], device: torch.device, pipeline: PipelineGroup
) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield the full *tensors* of all ranks of *pipeline* on its first rank, by their keys, on *device*.

    Other ranks yield nothing. Collective call; see ``gather_to_first``. Ranks of other pipelines have shards.
    """
    kinds = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
    return group_tensors.gather_to_first(kinds, lambda key: full_tensor(tensors[key]), device, pipeline.group)
