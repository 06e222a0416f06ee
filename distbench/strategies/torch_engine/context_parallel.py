"""Context parallelism: ranks that share rows, each with some of the positions of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from distbench.strategies.base import Refused, Setting
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads.base import Workload, counting
from distbench.workloads.context import Attend

T = TypeVar("T")


class Rows:
    """The rows of a workload, of which the ranks in the dimension ``cp`` of a mesh share each."""

    def __init__(self, workload: Workload, mesh: DeviceMesh) -> None:
        """Learn which positions this rank has.

        Raises:
            Refused: the workload does not say how its rows are cut.
        """
        if (context := workload.context()) is None:
            raise Refused(f"{type(workload).__name__} does not say how its rows are cut")
        self.workload, self.context, self.mesh = workload, context, mesh
        self.group = mesh.get_group("cp")
        self.seen: int | None = None
        """Positions that the live attention got last."""
        count = context.positions // self.group.size()
        first = self.group.rank() * count
        self.positions = torch.arange(first, first + count, device=mesh.device_type)
        """Places of those that this rank has."""

    def cut(self, module: nn.Module) -> None:
        """Let the plain *module* work on them."""
        self.workload.cut_rows(module, self.positions, self.around)

    def around(self, attend: Attend) -> Attend:
        """*attend* of all positions for some of the heads, in place of all heads at some positions.

        Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1): an all-to-all each of queries,
        keys and values before it, and one of what comes out.
        """

        def exchanged(*inputs: torch.Tensor) -> torch.Tensor:
            self.seen = inputs[0].shape[2]
            query, key, value = (_by_heads(x, self.group) for x in inputs)
            return _by_positions(attend(query, key, value), self.group)

        return exchanged

    def part_of(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of each row of *batch* the positions of this rank."""
        cut = {name: batch[name].index_select(1, self.positions) for name in self.context.arrays}
        return {**batch, **cut}

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Part of this rank in the mean loss of *batch*, times the ranks: the mean over them is that loss."""
        part, name = self.part_of(batch), self.context.labels
        mine, all_ranks = counting(part[name]), counting(batch[name])
        # the mean over no labels is not a number, and 0 times that is none either
        part[name] = part[name].where(mine > 0, 0)
        loss = self.workload.loss(module, part)
        return loss * (mine.double() * self.group.size() / all_ranks).to(loss)


class ContextEngine(TorchEngine):
    """Steps a module whose rows are cut by positions; mixed with engines that wrap it."""

    def __init__(self, setting: Setting, module: nn.Module, layers: list[nn.Module], rows: Rows) -> None:
        super().__init__(setting, module, layers)
        self._rows = rows
        self._loss = rows.loss

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        def cut(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.index_select(1, self._rows.positions) for x in inputs)

        def whole(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return collectives.all_gather_tensor(output, 1, self._rows.group)

        with self.module.register_forward_pre_hook(cut), self.module.register_forward_hook(whole):
            return super().evaluate(judge)

    def effective(self) -> dict[str, Any]:
        mesh = self._rows.mesh
        return {
            **super().effective(),
            "mesh": dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)),
            "context_parallel": "ulysses",
            "positions_per_rank": self._rows.seen,
        }


def _by_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All positions of some heads, of *x* (batch, heads, positions, width) with all heads of some."""
    sent = x.unflatten(1, (group.size(), -1)).transpose(0, 1)
    # from each rank the positions that it has
    return _exchanged(sent, group).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _by_positions(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All heads at some positions, of *x* (batch, heads, positions, width) with all positions of some."""
    sent = x.unflatten(2, (group.size(), -1)).permute(2, 0, 1, 3, 4)
    # from each rank the heads that it has
    return _exchanged(sent, group).transpose(0, 1).flatten(1, 2)


def _exchanged(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """From each rank what it has for this one; *sent* (ranks, ...) has what is for each."""
    received = collectives.all_to_all_single_autograd(sent.contiguous(), None, None, group)
    whole: torch.Tensor = collectives.wait_tensor(received)
    return whole
