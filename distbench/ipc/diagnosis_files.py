"""Files through which ``distbench doctor`` and the ranks that it sends out communicate."""

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
    """What the ranks are to look at."""

    device: Device
    folders: list[str]
    """Folders that runs write to."""
    ops: str
    """Folder of C++ ops."""
    timeout_s: float
    """Seconds that the group may take to form, and a message to arrive."""

    def write(self, file: Path) -> None:
        """Write the order to *file*; the folder exists."""
        write_atomic(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, file: Path) -> DiagnosisRequest:
        """Content of *file*, which ``write`` wrote."""
        return decode(cls, json.loads(file.read_text()), str(file))


@dataclass(frozen=True)
class RankPlacement:
    """Where a rank is."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    node_count: int

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> RankPlacement:
        """As torchrun names it in the environment."""
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE")
        return cls(*(int(variables[name]) for name in names))


@dataclass(frozen=True)
class JoinResult:
    """How a rank met the others."""

    member: int
    """Its number among those that met."""
    seconds: float
    """Time until all had met."""
    interface: str
    """Network interface that gloo and NCCL were told to use; empty: they chose."""
    address: str
    """Its address; empty: unknown."""
    speed_bits_per_s: float | None
    """Speed of the interface's hardware; None: it does not say, or has none."""


@dataclass(frozen=True)
class LinkTest:
    """Two members sent each other the same number of bytes at the same time."""

    peer: int
    """Number of the other member; this one's is lower."""
    bytes: int
    """Sent in each direction."""
    seconds: float
    round_trip_s: float
    """Time of a message of a few bytes, there and back; median."""
    clock_ahead_s: float
    """By how much the other's system clock is ahead, to within half of a round trip."""


@dataclass(frozen=True)
class AllReduceTest:
    """An all-reduce over all members."""

    members: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RankReport:
    """What one rank has found; what it did not come to is missing."""

    placement: RankPlacement
    facts: dict[str, Any] | None = None
    """Of the host, from its first rank."""
    host_state: HostState | None = None
    """Of the host, from its first rank."""
    busy_cores: float | None = None
    """Cores of the host that others kept busy meanwhile, from its first rank."""
    blocked_peers: list[int] = field(default_factory=list)
    """GPUs of the host that this rank's GPU can't access directly."""
    join: JoinResult | None = None
    link_tests: list[LinkTest] = field(default_factory=list)
    all_reduce: AllReduceTest | None = None
    error: str = ""
    """Why it did not come further."""

    def write(self, folder: Path) -> None:
        """Write it to *folder*, in place of an earlier one."""
        write_atomic(_file(folder, self.placement.rank), json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankReport | None:
        """What *rank* has written to *folder*; None: nothing."""
        file = _file(folder, rank)
        return decode(cls, json.loads(file.read_text()), str(file)) if file.is_file() else None


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"
