"""Memory that a machine has for the ranks of a case."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.core.units import format_bytes


@dataclass(frozen=True)
class MemoryCapacity:
    """Memory of one device, or of a node that shares it among its ranks."""

    bytes: int
    ranks: int
    """Ranks that share it."""
    owner: str
    """Text for its owner: ``a GPU of this machine``."""

    def fits(self, each: float, share: float = 1.0) -> bool:
        """True if every rank can have *each* bytes of a *share* of it."""
        return self.ranks * each <= share * self.bytes

    def need_text(self, each: float) -> str:
        """*each* bytes of every rank, for people."""
        of_ranks = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{format_bytes(each)}{of_ranks}"

    @property
    def text(self) -> str:
        """Its owner and its size, for people."""
        return f"{self.owner} has {format_bytes(self.bytes)} of memory"


def memory_capacity(case: Case, machine: Machine) -> MemoryCapacity | None:
    """Memory of *machine* for each device of *case*, or for the ranks on each node; None: it is unknown."""
    if case.device == "cpu":
        # ranks fill one node after another
        ranks = min(case.world_size, machine.devices_per_node)
        owner = "this machine" if machine.nodes == 1 else "a node"
        return None if machine.memory is None else MemoryCapacity(machine.memory, ranks, owner)
    owner = f"a GPU of type {machine.gpu_type}" if machine.gpu_type else "a GPU of this machine"
    return None if machine.device_memory is None else MemoryCapacity(machine.device_memory, 1, owner)
