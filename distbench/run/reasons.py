"""The status of a trial whose rank failed, and one sentence on why."""

from __future__ import annotations

import os
import signal
from typing import Any

from distbench.oom import Account
from distbench.processes import ending
from distbench.record import Status
from distbench.trial import FULL
from distbench.units import bytes_text

# the first that an exception is, by the names of its types
_STATUSES = {
    "Mismatch": Status.MISMATCH,
    "Refused": Status.UNSUPPORTED,
    "OutOfMemoryError": Status.OOM_GPU,
    "MemoryError": Status.OOM_HOST,
}


def classify(failure: dict[str, Any]) -> Status:
    """Status of a trial whose first failure is *failure*."""
    if out_of_memory(failure.get("memory")):
        return Status.OOM_HOST
    types = failure.get("types", [])
    if "DefaultCPUAllocator: can't allocate" in failure.get("message", ""):
        types = [*types, "MemoryError"]
    return next((status for type_, status in _STATUSES.items() if type_ in types), Status.CRASHED)


def out_of_memory(memory: Account | None) -> bool:
    """Whether the kernel killed for want of memory meanwhile."""
    return memory is not None and memory.kills > 0


def reason_of(failure: dict[str, Any]) -> str:
    """One sentence on the first *failure*."""
    rank, phase = failure["rank"], failure["phase"]
    if "types" in failure:
        if "Refused" in failure["types"]:
            return str(failure["message"])
        first_line = (failure["message"].strip().splitlines() or [""])[0]
        return f"rank {rank} in {phase}: {failure['types'][0]}: {first_line}"
    code = failure["code"]
    told = f"rank {rank} in {phase}: {ending(code)} before it wrote its result"
    if code in FULL:
        return f"{told}, which is how a rank says that it can't write: {os.strerror(code)}"
    return f"{told}: {killed_text(failure['memory'])}" if code == -signal.SIGKILL else told


def killed_text(memory: Account | None) -> str:
    """Who sent a SIGKILL that distbench did not send, by what the kernel counted meanwhile."""
    if memory is None:
        return (
            "distbench did not send it; often it is the kernel's, out of memory (its counters can't be read)"
        )
    if not out_of_memory(memory):
        return "distbench did not send it, and the kernel has not run out of memory meanwhile"
    limit = bytes_text(memory.limit) if memory.limit is not None else "none"
    if memory.scope == "machine":
        killed = f"{memory.kills:,} process{'es' * (memory.kills != 1)} of this machine"
        return (
            f"meanwhile the kernel killed {killed} for memory, probably this one too (by the counter of the "
            f"whole machine, which has {limit})"
        )
    peak = bytes_text(memory.peak) if memory.peak is not None else "not counted"
    return f"the kernel sent it as memory ran out (limit of the cgroup {limit}, its peak {peak})"
