"""The ranks of one pipeline; a mesh with further dimensions has several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from distbench.core.meshes import MeshShape
from distbench.strategies.torch_engine import device_meshes


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
