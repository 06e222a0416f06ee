"""Collective operations with their inputs and expected results.

Each works in place or not as in trainings: ``all_reduce`` and ``broadcast`` do, the others do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class GroupMembership:
    """Ranks of a group, from the view of one of them."""

    group: dist.ProcessGroup
    ranks: Sequence[int]
    """Global ranks, in the order of the group."""
    position: int
    """Index of this rank in ``ranks``."""
    device: torch.device
    nodes: int = 1
    """Number of nodes that these ranks are on."""

    @property
    def size(self) -> int:
        return len(self.ranks)


class CollectiveOperation(ABC):
    """One collective operation of one size and dtype, on one rank."""

    counts_share: bool = True
    """True if nccl-tests counts the elements of a rank's share, not those of the full array."""

    def __init__(self, members: GroupMembership, elements: int, dtype: torch.dtype) -> None:
        """Allocate the buffers, filled with 0.

        Args:
            elements: Elements of the full array; a multiple of the number of ranks.
        """
        self._members, self._elements, self._share_elements = members, elements, elements // members.size
        self._dtype = dtype
        self.buffers = self._allocate()

    @abstractmethod
    def _allocate(self) -> list[torch.Tensor]:
        """Allocate input and output; one tensor if the operation works in place."""

    @abstractmethod
    def _input(self) -> torch.Tensor:
        """Input of this rank for a check."""

    @abstractmethod
    def _expected(self) -> torch.Tensor:
        """Expected output on this rank."""

    @abstractmethod
    def call(self) -> None:
        """Issue the operation once; on a GPU it may still run when this returns."""

    def fill(self) -> None:
        """Fill the buffers with the input of a check."""
        self.buffers[-1].zero_()
        self.buffers[0].copy_(self._input())

    def clear(self) -> None:
        """Set the buffers to 0: repeated sums of it never overflow."""
        for buffer in self.buffers:
            buffer.zero_()

    def wrong_elements(self) -> int:
        """Number of wrong elements on this rank, one call after ``fill``."""
        return int((self.buffers[-1] != self._expected()).sum())

    def _zeros(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=self._dtype, device=self._members.device)

    def _places(self, elements: int) -> torch.Tensor:
        return torch.arange(elements, device=self._members.device)

    def _block(self, sender: int, receiver: int = 0) -> torch.Tensor:
        """Share (elements,) that identifies its sender and receiver.

        Small integers, which are exact in every dtype.
        """
        return (
            (self._places(self._share_elements) + 3 * sender + 5 * receiver + 1)
            .remainder(101)
            .to(self._dtype)
        )

    def _blocks(self) -> torch.Tensor:
        """Shares of all ranks (elements,), in their order."""
        return torch.cat([self._block(sender) for sender in range(self._members.size)])


class _Reduction(CollectiveOperation):
    """Sums in which one rank has each element and the others 0: exact in any dtype and order."""

    def _input(self) -> torch.Tensor:
        places = self._places(self._elements)
        is_mine = places.remainder(self._members.size) == self._members.position
        return (places.remainder(5) * is_mine).to(self._dtype)

    def _sum(self) -> torch.Tensor:
        return self._places(self._elements).remainder(5).to(self._dtype)


class AllReduce(_Reduction):
    """Sum of all ranks' arrays, on all of them; in place."""

    counts_share = False

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._elements)]

    def _expected(self) -> torch.Tensor:
        return self._sum()

    def call(self) -> None:
        dist.all_reduce(self.buffers[0], group=self._members.group)


class ReduceScatter(_Reduction):
    """Sum of all ranks' arrays, of which each rank gets its share."""

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._elements), self._zeros(self._share_elements)]

    def _expected(self) -> torch.Tensor:
        return self._sum()[self._share_elements * self._members.position :][: self._share_elements]

    def call(self) -> None:
        dist.reduce_scatter_tensor(self.buffers[1], self.buffers[0], group=self._members.group)


class AllGather(CollectiveOperation):
    """Shares of all ranks, on all of them."""

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._share_elements), self._zeros(self._elements)]

    def _input(self) -> torch.Tensor:
        return self._block(self._members.position)

    def _expected(self) -> torch.Tensor:
        return self._blocks()

    def call(self) -> None:
        dist.all_gather_into_tensor(self.buffers[1], self.buffers[0], group=self._members.group)


class AllToAll(CollectiveOperation):
    """A share from each rank to every other one."""

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._elements), self._zeros(self._elements)]

    def _input(self) -> torch.Tensor:
        return torch.cat([self._block(self._members.position, to) for to in range(self._members.size)])

    def _expected(self) -> torch.Tensor:
        return torch.cat(
            [self._block(sender, self._members.position) for sender in range(self._members.size)]
        )

    def call(self) -> None:
        dist.all_to_all_single(self.buffers[1], self.buffers[0], group=self._members.group)


class Broadcast(CollectiveOperation):
    """Array of the group's first rank, on all ranks; in place."""

    counts_share = False

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._elements)]

    def _input(self) -> torch.Tensor:
        return self._blocks() if self._members.position == 0 else self._zeros(self._elements)

    def _expected(self) -> torch.Tensor:
        return self._blocks()

    def call(self) -> None:
        dist.broadcast(self.buffers[0], self._members.ranks[0], group=self._members.group)


class SendReceive(CollectiveOperation):
    """A ring: each rank sends an array to the next one, and receives that of the previous one."""

    counts_share = False

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._elements), self._zeros(self._elements)]

    def _input(self) -> torch.Tensor:
        return self._of_ring(self._members.position)

    def _expected(self) -> torch.Tensor:
        return self._of_ring((self._members.position - 1) % self._members.size)

    def _of_ring(self, sender: int) -> torch.Tensor:
        return (self._places(self._elements) + 3 * sender + 1).remainder(101).to(self._dtype)

    def call(self) -> None:
        ranks, place = self._members.ranks, self._members.position
        there, back = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        calls = [
            dist.P2POp(dist.isend, self.buffers[0], there, self._members.group),
            dist.P2POp(dist.irecv, self.buffers[1], back, self._members.group),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()


OPERATIONS: dict[str, type[CollectiveOperation]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "broadcast": Broadcast,
    "send_recv": SendReceive,
}
