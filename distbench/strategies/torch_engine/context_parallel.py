"""Context parallelism: ranks that share samples, each with some positions of every sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.theory.context_parallelism import AttentionExchange
from distbench.strategies.torch_engine import device_meshes
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.global_mean import GlobalMean
from distbench.workloads.base import Workload, count_labels
from distbench.workloads.context import AttentionFunction

if TYPE_CHECKING:
    from distbench.strategies.torch_engine.ring import RingAttention

T = TypeVar("T")


class SequenceSharding:
    """Division of samples by position among the ranks of a mesh's dimension ``cp``."""

    def __init__(self, workload: Workload, mesh: DeviceMesh, implementation: AttentionExchange) -> None:
        """Determine the positions of this rank.

        Raises:
            UnsupportedCase: the workload does not declare how to split its sequences, or this torch lacks the
                implementation.
        """
        if (context := workload.context_split()) is None:
            raise UnsupportedCase(f"{type(workload).__name__} does not declare how to split its sequences")
        self.workload, self.context, self.mesh = workload, context, mesh
        self.group = mesh.get_group("cp")
        self.observed_positions: int | None = None
        """Number of positions that the live attention last received."""
        self.implementation = implementation
        self._attention = _make_attention(implementation, mesh["cp"])
        parts = self._attention.positions_by_rank(context.seq_len).to(mesh.device_type)
        self.positions = parts[self.group.rank()]
        """Positions of this rank."""
        self._order = parts.flatten().argsort()

    def apply_to(self, module: nn.Module) -> None:
        """Make the plain *module* compute at these positions."""
        self.workload.shard_sequence(module, self.positions, self._observe)

    def _observe(self, attend: AttentionFunction) -> AttentionFunction:
        exchanged = self._attention.wrap(attend)

        def observed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self.observed_positions = query.shape[2]
            return exchanged(query, key, value)

        return observed

    def local_batch(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The positions of this rank in each sample of *batch*."""
        cut = {name: batch[name].index_select(1, self.positions) for name in self.context.sharded_arrays}
        return {**batch, **cut}

    def gather_outputs(self, output: torch.Tensor) -> torch.Tensor:
        """*output* (batch, positions, ...) of all ranks that share samples, in the order of the sequence."""
        whole: torch.Tensor = collectives.all_gather_tensor(output, 1, self.group)
        return whole.index_select(1, self._order)

    def loss(
        self, module: nn.Module, batch: dict[str, torch.Tensor], global_mean: GlobalMean
    ) -> torch.Tensor:
        """This rank's part of the loss of *batch*, times the number of ranks: its mean over them is the loss.

        *global_mean* turns a sum into a part of the mean over the global batch.
        """
        part, name = self.local_batch(batch), self.context.label_array
        mine, all_ranks = count_labels(part[name]), count_labels(batch[name])
        # the mean over no labels is NaN, and 0 times NaN is NaN as well
        part[name] = part[name].where(mine > 0, 0)
        loss = self.workload.loss(module, part)
        if isinstance(loss, tuple) or global_mean.weighs_labels:
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
            f"implementation: ring does not work with torch {torch.__version__}: its ring attention is "
            f"missing or has changed ({error}); use implementation: ulysses"
        ) from error


class SequenceShardedEngine(TorchEngine):
    """Engine of a module whose samples are split by position; a mix-in for engines that wrap it."""

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


class UlyssesAttention:
    """Attention over all positions for some heads of each rank, between all-to-alls.

    Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1).
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        """Use the ranks of *mesh*, which share samples."""
        self._group = mesh.get_group()

    def positions_by_rank(self, positions: int) -> torch.Tensor:
        """Positions of each rank (ranks, positions / ranks): consecutive ones."""
        return torch.arange(positions).view(self._group.size(), -1)

    def wrap(self, attend: AttentionFunction) -> AttentionFunction:
        """*attend* between all-to-alls: one each for queries, keys and values before, one for its output."""

        def exchanged(*inputs: torch.Tensor) -> torch.Tensor:
            query, key, value = (_scatter_heads(x, self._group) for x in inputs)
            return _scatter_positions(attend(query, key, value), self._group)

        return exchanged


def _scatter_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All positions of some heads; *x* (batch, heads, positions, width) has all heads at some positions."""
    sent = x.unflatten(1, (group.size(), -1)).transpose(0, 1)
    # from each rank its positions
    return _all_to_all(sent, group).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _scatter_positions(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All heads at some positions; *x* (batch, heads, positions, width) has all positions of some heads."""
    sent = x.unflatten(2, (group.size(), -1)).permute(2, 0, 1, 3, 4)
    # from each rank its heads
    return _all_to_all(sent, group).transpose(0, 1).flatten(1, 2)


def _all_to_all(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The parts for this rank from each rank; *sent* (ranks, ...) has the parts for each rank."""
    received = collectives.all_to_all_single_autograd(sent.contiguous(), None, None, group)
    whole: torch.Tensor = collectives.wait_tensor(received)
    return whole
