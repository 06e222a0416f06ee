"""The operations on buffers of their own: what goes in, the call, and whether what came out is right.

Each is in place or not as trainings call it: ``all_reduce`` and ``broadcast`` are, the others are not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class GroupMembership:
    """The ranks that take part, seen from one of them."""

    group: dist.ProcessGroup
    ranks: Sequence[int]
    """Global ranks, in the order of the group."""
    position: int
    """Place of this rank among them."""
    device: torch.device
    nodes: int = 1
    """Nodes that these ranks are on."""

    @property
    def size(self) -> int:
        return len(self.ranks)


class CollectiveOperation(ABC):
    """One collective operation of one size and dtype, on one rank."""

    counts_share: bool = True
    """Whether nccl-tests counts the elements of a rank's share, and not those of the whole array."""

    def __init__(self, members: GroupMembership, elements: int, dtype: torch.dtype) -> None:
        """Allocate the buffers, all of them 0.

        Args:
            elements: Of the full array; a multiple of the number of ranks.
        """
        self._members, self._elements, self._share_elements = members, elements, elements // members.size
        self._dtype = dtype
        self.buffers = self._allocate()

    @abstractmethod
    def _allocate(self) -> list[torch.Tensor]:
        """Input and output; the same tensor, once, if the operation works in place."""

    @abstractmethod
    def _input(self) -> torch.Tensor:
        """What this rank puts in for a check."""

    @abstractmethod
    def _expected(self) -> torch.Tensor:
        """What must then come out on this rank."""

    @abstractmethod
    def call(self) -> None:
        """Issue the operation once; on a GPU it may still run when this returns."""

    def fill(self) -> None:
        """Put in what a check needs."""
        self.buffers[-1].zero_()
        self.buffers[0].copy_(self._input())

    def clear(self) -> None:
        """Put in 0, of which no sum of sums leaves the range of its dtype."""
        for buffer in self.buffers:
            buffer.zero_()

    def wrong_elements(self) -> int:
        """Elements on this rank that are not as they must be, one call after ``fill``."""
        return int((self.buffers[-1] != self._expected()).sum())

    def _zeros(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=self._dtype, device=self._members.device)

    def _places(self, elements: int) -> torch.Tensor:
        return torch.arange(elements, device=self._members.device)

    def _block(self, sender: int, receiver: int = 0) -> torch.Tensor:
        """A share (elements,) that tells from whom it comes and for whom it is.

        Small whole numbers, which every dtype holds exactly.
        """
        return (
            (self._places(self._share_elements) + 3 * sender + 5 * receiver + 1)
            .remainder(101)
            .to(self._dtype)
        )

    def _blocks(self) -> torch.Tensor:
        """The shares of all ranks (elements,), in their order."""
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
    """The shares of all ranks, on all of them."""

    def _allocate(self) -> list[torch.Tensor]:
        return [self._zeros(self._share_elements), self._zeros(self._elements)]

    def _input(self) -> torch.Tensor:
        return self._block(self._members.position)

    def _expected(self) -> torch.Tensor:
        return self._blocks()

    def call(self) -> None:
        dist.all_gather_into_tensor(self.buffers[1], self.buffers[0], group=self._members.group)


class AllToAll(CollectiveOperation):
    """A share from each rank to each other one."""

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
    """The array of the group's first rank, on all of them; in place."""

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
    """A ring: each rank sends an array to the next one, while it gets that of the one before."""

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
