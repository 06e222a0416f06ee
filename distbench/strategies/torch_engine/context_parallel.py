"""Context parallelism: ranks that share rows, each with some of the positions of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from distbench.strategies._context_parallel import Implementation
from distbench.strategies.base import Refused, Setting
from distbench.strategies.torch_engine import device_meshes
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.ulysses import Ulysses
from distbench.workloads.base import Workload, counting
from distbench.workloads.context import Attend

if TYPE_CHECKING:
    from distbench.strategies.torch_engine.ring import Ring

T = TypeVar("T")


class Rows:
    """The rows of a workload, of which the ranks in the dimension ``cp`` of a mesh share each."""

    def __init__(self, workload: Workload, mesh: DeviceMesh, implementation: Implementation) -> None:
        """Learn which positions this rank has.

        Raises:
            Refused: the workload does not say how its rows are cut, or this torch lacks the implementation.
        """
        if (context := workload.context()) is None:
            raise Refused(f"{type(workload).__name__} does not declare how to split its sequences")
        self.workload, self.context, self.mesh = workload, context, mesh
        self.group = mesh.get_group("cp")
        self.seen: int | None = None
        """Positions that the live attention got last."""
        self.implementation = implementation
        self._exchange = _exchange(implementation, mesh["cp"])
        parts = self._exchange.parts(context.positions).to(mesh.device_type)
        self.positions = parts[self.group.rank()]
        """Places of those that this rank has."""
        self._order = parts.flatten().argsort()

    def cut(self, module: nn.Module) -> None:
        """Let the plain *module* work on them."""
        self.workload.cut_rows(module, self.positions, self._observed)

    def _observed(self, attend: Attend) -> Attend:
        exchanged = self._exchange.around(attend)

        def observed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self.seen = query.shape[2]
            return exchanged(query, key, value)

        return observed

    def part_of(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of each row of *batch* the positions of this rank."""
        cut = {name: batch[name].index_select(1, self.positions) for name in self.context.arrays}
        return {**batch, **cut}

    def gathered(self, output: torch.Tensor) -> torch.Tensor:
        """*output* (batch, positions, ...) of all ranks that share rows, in the order of the row."""
        whole: torch.Tensor = collectives.all_gather_tensor(output, 1, self.group)
        return whole.index_select(1, self._order)

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor], whole: GlobalMean) -> torch.Tensor:
        """Part of this rank in the loss of *batch*, times the ranks: the mean over them is that loss.

        *whole* makes of a sum a part of the mean over the global batch.
        """
        part, name = self.part_of(batch), self.context.labels
        mine, all_ranks = counting(part[name]), counting(batch[name])
        # the mean over no labels is not a number, and 0 times that is none either
        part[name] = part[name].where(mine > 0, 0)
        loss = self.workload.loss(module, part)
        if isinstance(loss, tuple):
            return whole.of(loss, part) * ((mine > 0) * self.group.size())
        return loss * (mine.double() * self.group.size() / all_ranks).to(loss)


def _exchange(implementation: Implementation, mesh: DeviceMesh) -> Ulysses | Ring:
    if implementation == "ulysses":
        return Ulysses(mesh)
    try:
        from distbench.strategies.torch_engine.ring import Ring

        return Ring(mesh)
    except (ImportError, AttributeError) as error:
        # a prototype of torch's, which other versions have elsewhere or not at all
        raise Refused(
            f"torch {torch.__version__} has another ring attention than distbench uses, or none ({error}); "
            "use implementation: ulysses"
        ) from error


class ContextEngine(TorchEngine):
    """Steps a module whose rows are cut by positions; mixed with engines that wrap it."""

    def __init__(self, setting: Setting, module: nn.Module, layers: list[nn.Module], rows: Rows) -> None:
        super().__init__(setting, module, layers)
        self._rows = rows
        whole = GlobalMean(setting)
        self._loss = lambda module, batch: rows.loss(module, batch, whole)

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        def cut(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.index_select(1, self._rows.positions) for x in inputs)

        def whole(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return self._rows.gathered(output)

        with self.module.register_forward_pre_hook(cut), self.module.register_forward_hook(whole):
            return super().evaluate(judge)

    def effective(self) -> dict[str, Any]:
        return {
            **super().effective(),
            "mesh": device_meshes.sizes_of(self._rows.mesh),
            "context_parallel": self._rows.implementation,
            "positions_per_rank": self._rows.seen,
        }
