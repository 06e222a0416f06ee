"""Context parallelism: ranks that share rows, each with some of the positions of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from distbench.strategies._context_parallel import AttentionExchange
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.torch_engine import device_meshes
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.strategies.torch_engine.ulysses import UlyssesAttention
from distbench.workloads.base import Workload, count_labels
from distbench.workloads.context import AttentionFunction

if TYPE_CHECKING:
    from distbench.strategies.torch_engine.ring import RingAttention

T = TypeVar("T")


class SequenceSharding:
    """The rows of a workload, of which the ranks in the dimension ``cp`` of a mesh share each."""

    def __init__(self, workload: Workload, mesh: DeviceMesh, implementation: AttentionExchange) -> None:
        """Learn which positions this rank has.

        Raises:
            UnsupportedCase: the workload does not say how its rows are cut, or this torch lacks the
                implementation.
        """
        if (context := workload.context_split()) is None:
            raise UnsupportedCase(f"{type(workload).__name__} does not declare how to split its sequences")
        self.workload, self.context, self.mesh = workload, context, mesh
        self.group = mesh.get_group("cp")
        self.observed_positions: int | None = None
        """Positions that the live attention got last."""
        self.implementation = implementation
        self._attention = _make_attention(implementation, mesh["cp"])
        parts = self._attention.positions_by_rank(context.seq_len).to(mesh.device_type)
        self.positions = parts[self.group.rank()]
        """Places of those that this rank has."""
        self._order = parts.flatten().argsort()

    def apply_to(self, module: nn.Module) -> None:
        """Let the plain *module* work on them."""
        self.workload.shard_sequence(module, self.positions, self._observe)

    def _observe(self, attend: AttentionFunction) -> AttentionFunction:
        exchanged = self._attention.wrap(attend)

        def observed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self.observed_positions = query.shape[2]
            return exchanged(query, key, value)

        return observed

    def local_batch(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of each row of *batch* the positions of this rank."""
        cut = {name: batch[name].index_select(1, self.positions) for name in self.context.sharded_arrays}
        return {**batch, **cut}

    def gather_outputs(self, output: torch.Tensor) -> torch.Tensor:
        """*output* (batch, positions, ...) of all ranks that share rows, in the order of the row."""
        whole: torch.Tensor = collectives.all_gather_tensor(output, 1, self.group)
        return whole.index_select(1, self._order)

    def loss(
        self, module: nn.Module, batch: dict[str, torch.Tensor], global_mean: GlobalMean
    ) -> torch.Tensor:
        """Part of this rank in the loss of *batch*, times the ranks: the mean over them is that loss.

        *global_mean* makes of a sum a part of the mean over the global batch.
        """
        part, name = self.local_batch(batch), self.context.label_array
        mine, all_ranks = count_labels(part[name]), count_labels(batch[name])
        # the mean over no labels is not a number, and 0 times that is none either
        part[name] = part[name].where(mine > 0, 0)
        loss = self.workload.loss(module, part)
        if isinstance(loss, tuple):
            return global_mean.normalize(loss, part) * ((mine > 0) * self.group.size())
        return loss * (mine.double() * self.group.size() / all_ranks).to(loss)


def _make_attention(implementation: AttentionExchange, mesh: DeviceMesh) -> UlyssesAttention | RingAttention:
    if implementation == "ulysses":
        return UlyssesAttention(mesh)
    try:
        from distbench.strategies.torch_engine.ring import RingAttention

        return RingAttention(mesh)
    except (ImportError, AttributeError) as error:
        # a prototype of torch's, which other versions have elsewhere or not at all
        raise UnsupportedCase(
            f"torch {torch.__version__} has another ring attention than distbench uses, or none ({error}); "
            "use implementation: ulysses"
        ) from error


class SequenceShardedEngine(TorchEngine):
    """Steps a module whose rows are cut by positions; mixed with engines that wrap it."""

    def __init__(
        self, context: RankContext, module: nn.Module, layers: list[nn.Module], sequences: SequenceSharding
    ) -> None:
        super().__init__(context, module, layers)
        self._sequences = sequences
        whole = GlobalMean(context)
        self._loss = lambda module, batch: sequences.loss(module, batch, whole)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        def cut(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.index_select(1, self._sequences.positions) for x in inputs)

        def whole(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return self._sequences.gather_outputs(output)

        with self.module.register_forward_pre_hook(cut), self.module.register_forward_hook(whole):
            return super().evaluate(score)

    def effective_settings(self) -> dict[str, Any]:
        return {
            **super().effective_settings(),
            "mesh": device_meshes.mesh_sizes(self._sequences.mesh),
            "context_parallel": self._sequences.implementation,
            "positions_per_rank": self._sequences.observed_positions,
        }
