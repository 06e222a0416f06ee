"""Processes of a run: each carries the run's id, so that none is left behind."""

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distbench.env import RUN_ID

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Share:
    """Ranks of a launch that one node starts, and where all of them meet."""

    world_size: int
    """Ranks of the launch, on all of its nodes."""
    count: int
    """Ranks on this node."""
    first: int = 0
    """The first of them; the others follow it."""
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    """Address of the node of rank 0, at which every node reaches it."""
    port: int = 0
    """Port of the rendezvous there; 0 on the node of rank 0: any that is free, which it then reports."""

    @property
    def has_rank_0(self) -> bool:
        """Whether the rendezvous is opened on this node."""
        return self.first == 0

    def variables(self, local_rank: int, port: int) -> dict[str, str]:
        """Variables that place a rank, as torchrun names them."""
        return {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.first + local_rank),
            "LOCAL_WORLD_SIZE": str(self.count),
            "LOCAL_RANK": str(local_rank),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "GROUP_RANK": str(self.node),
        }


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent *parent* exits for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # the parent exited before the kernel was asked to watch it
        os._exit(1)


def survive_parent() -> None:
    """Undo ``die_with_parent``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def tagged(run_id: str) -> list[int]:
    """Ids of all live processes of run *run_id* except this one."""
    tag = f"{RUN_ID}={run_id}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # a zombie has no environment left, so it does not count
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            # it has exited, or belongs to another user
            continue
    return pids


def kill_tagged(run_id: str, spare: Collection[int] = (), patience_s: float = 10.0) -> list[int]:
    """Kill all processes of run *run_id* except this one and *spare*; return those still alive.

    A process in an uninterruptible wait for a device can't be killed.
    """
    end = time.monotonic() + patience_s
    while left := [pid for pid in tagged(run_id) if pid not in spare]:
        for pid in left:
            kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return left
        time.sleep(0.01)
    return []


def kill(pid: int, number: int) -> None:
    """Send signal *number* to *pid* unless it has exited."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
