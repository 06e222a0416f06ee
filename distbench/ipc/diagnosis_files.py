"""Files between ``distbench doctor`` and the ranks that it launches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.core.case import Device
from distbench.core.serialization import decode
from distbench.system.files import write_atomic
from distbench.system.host_state import HostState


@dataclass(frozen=True)
class DiagnosisRequest:
    """Request to the ranks of a diagnosis."""

    device: Device
    folders: list[str]
    """Folders that runs write to."""
    ops: str
    """Folder of C++ ops."""
    timeout_s: float
    """Seconds allowed for the group to form, and for a message to arrive."""

    def write(self, file: Path) -> None:
        """Write the request to *file*; the folder exists."""
        write_atomic(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, file: Path) -> DiagnosisRequest:
        """Content of *file*, which ``write`` wrote."""
        return decode(cls, json.loads(file.read_text()), str(file))


@dataclass(frozen=True)
class RankPlacement:
    """Position of a rank in its group and on its node."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    node_count: int

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> RankPlacement:
        """Placement in the environment *variables*, with torchrun's names."""
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE")
        return cls(*(int(variables[name]) for name in names))


@dataclass(frozen=True)
class JoinResult:
    """Result of joining the group."""

    member: int
    """Its rank in the group."""
    seconds: float
    """Time until all had joined."""
    interface: str
    """Network interface configured for gloo and NCCL; empty: they chose."""
    address: str
    """Its address; empty: unknown."""
    speed_bits_per_s: float | None
    """Speed of the interface's hardware; None: it reports none, or there is no hardware."""
    mtu: int | None = None
    """Most bytes of a packet on the interface; None: unknown."""


@dataclass(frozen=True)
class LinkTest:
    """Simultaneous transfer of the same number of bytes in both directions between two members."""

    peer: int
    """Rank of the other member; this one's is lower."""
    bytes: int
    """Bytes sent in each direction."""
    seconds: float
    round_trip_s: float
    """Median round-trip time of a message of a few bytes."""
    clock_ahead_s: float
    """Seconds by which the other's system clock is ahead, to within half a round trip."""


@dataclass(frozen=True)
class AllReduceTest:
    """An all-reduce over all members."""

    members: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RankReport:
    """Report of one rank; results that it did not reach are missing."""

    placement: RankPlacement
    facts: dict[str, Any] | None = None
    """Facts about the host, from its first rank."""
    host_state: HostState | None = None
    """State of the host, from its first rank."""
    busy_cores: float | None = None
    """Cores of the host that other processes kept busy meanwhile, from its first rank."""
    blocked_peers: list[int] = field(default_factory=list)
    """GPUs of the host that this rank's GPU can't access directly."""
    join: JoinResult | None = None
    link_tests: list[LinkTest] = field(default_factory=list)
    all_reduce: AllReduceTest | None = None
    error: str = ""
    """Reason why it did not get further."""
    device_error: str = ""
    """Reason why torch can't use the rank's GPU, with the remedy."""

    def write(self, folder: Path) -> None:
        """Write the report to *folder*, in place of an earlier one."""
        write_atomic(_file(folder, self.placement.rank), json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankReport | None:
        """Report of *rank* in *folder*; None: there is none."""
        file = _file(folder, rank)
        return decode(cls, json.loads(file.read_text()), str(file)) if file.is_file() else None


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"
