"""The pipeline that this rank is in: one of several, where the mesh has more dimensions."""

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
    """Ranks that have the stages of one copy of the model, in the order of their stages."""

    device_mesh: DeviceMesh
    """Of all ranks, with the dimension ``pp``."""

    @classmethod
    def create(cls, mesh: MeshShape, device: torch.device) -> PipelineGroup:
        """The line of this rank in *mesh*. A collective call."""
        line = cls(device_meshes.init_mesh(mesh.sizes, device))
        if device.type == "cuda":
            # where shapes are given, torch 2.13 connects pairs first, and the whole group only when some rank
            # sends and receives at once, in the middle of a schedule (a TODO in ``_warmup_p2p``)
            dist.all_reduce(torch.zeros(1, device=device), group=line.group)
        return line

    @property
    def group(self) -> dist.ProcessGroup:
        """Its ranks; collective calls over all stages are among them."""
        return self.device_mesh.get_group("pp")

    @property
    def size(self) -> int:
        """Number of its ranks."""
        return self.group.size()

    @property
    def rank(self) -> int:
        """Which of them this rank is."""
        return self.group.rank()

    def end_group(self, places: Sequence[int]) -> dist.ProcessGroup | None:
        """New group of the ranks at *places*; None if this one is not there. A collective call over all."""
        # one dimension after another: a column of the table is a line
        lines = self.device_mesh.mesh.reshape(self.size, -1).T.tolist()
        mine = None
        for ranks in lines:
            # all ranks make the groups of all lines, as torch demands
            made = dist.new_group([ranks[place] for place in places])
            if dist.get_rank() in ranks and self.rank in places:
                mine = made
        return mine

    def all_gather_object(self, own: Any) -> list[Any]:
        """What each rank of the line gives as *own*, by place. A collective call."""
        given: list[Any] = [None] * self.size
        dist.all_gather_object(given, own, group=self.group)
        return given

    def combined_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """L2 norm of what all its ranks have, of which *norm* is this rank's. A collective call."""
        square = norm.square()
        dist.all_reduce(square, group=self.group)
        return square.sqrt()
