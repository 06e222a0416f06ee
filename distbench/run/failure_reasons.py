"""The status of a trial whose rank failed, and one sentence on why."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from distbench.core.errors import Mismatch, Refused
from distbench.core.text import telling_line
from distbench.core.units import bytes_text
from distbench.ipc.trial_files import FULL
from distbench.record import Status
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.processes import ending

# the first that an exception is, by the names of its types
_STATUSES = {
    Mismatch.__name__: Status.MISMATCH,
    Refused.__name__: Status.UNSUPPORTED,
    "OutOfMemoryError": Status.OOM_GPU,
    "MemoryError": Status.OOM_HOST,
}
# memory of a device that torch's caching allocator does not hand out, as its C++ and NCCL tell of it: the
# CUDA context and modules, handles and workspaces of libraries, communicators, and pinned host memory
_DEVICE_FULL = re.compile(
    r"CUDA (driver )?error: out of memory|Triton Error \[CUDA\]: out of memory"
    r"|Cuda failure (\d+ )?'out of memory'|CU[A-Z]+_STATUS(_INTERNAL_ERROR_DEVICE)?_ALLOC(ATION)?_FAILED"
)
_HOST_FULL = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|\[Errno 12\]"
    r"|unable to mmap .*Cannot allocate memory|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
)
# what a rank reports when its peer has exited: a symptom, not a cause
_SYMPTOM = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket Timeout|remote process exit"
    r"|recvValue failed|sendBytes failed|store->get|Timed out waiting .*ms for|Application timeout"
    r"|NCCL communicator was aborted|Watchdog caught collective operation timeout",
    re.IGNORECASE,
)
UNWRITABLE = "which is how a rank says that it can't write"
"""In the reason of a rank that could not even write, on its node, why it failed."""
# as which torch.compile tells of the C++ compiler, with its whole command and output
_COMPILER = "CppCompileError: "
# with so much of the device free, no handle, workspace or communicator has filled it
_PLENTY = 4 << 30


def classify(failure: dict[str, Any]) -> Status:
    """Status of a trial whose first failure is *failure*."""
    if out_of_memory(failure.get("memory")):
        return Status.OOM_HOST
    of_type = (status for type_, status in _STATUSES.items() if type_ in failure.get("types", []))
    return next(of_type, None) or _by_message(failure) or Status.CRASHED


def is_symptom(failure: dict[str, Any]) -> bool:
    """Whether *failure* is what a rank reports when another has ended: no cause."""
    return classify(failure) is Status.CRASHED and bool(_SYMPTOM.search(failure["message"]))


def _by_message(failure: dict[str, Any]) -> Status | None:
    message = failure.get("message", "")
    if _DEVICE_FULL.search(message):
        return Status.OOM_HOST if _is_pinned(failure) else Status.OOM_GPU
    return Status.OOM_HOST if _HOST_FULL.search(message) else None


def _is_pinned(failure: dict[str, Any]) -> bool:
    """Whether the device had room enough: CUDA says the same of host memory that can't be pinned."""
    return (failure.get("device_free") or 0) >= _PLENTY


def out_of_memory(memory: CgroupMemory | None) -> bool:
    """Whether the kernel killed for want of memory meanwhile."""
    return memory is not None and memory.kills > 0


def reason_of(failure: dict[str, Any]) -> str:
    """One sentence on the first *failure*."""
    rank, phase = failure["rank"], failure["phase"]
    if "types" in failure:
        if Refused.__name__ in failure["types"]:
            return str(failure["message"])
        return f"rank {rank} in {phase}: {_raised(failure)}"
    code = failure["code"]
    told = f"rank {rank} in {phase}: {ending(code)} before it wrote its result"
    if code in FULL:
        return f"{told}, {UNWRITABLE}: {os.strerror(code)}"
    return f"{told}: {killed_text(failure['memory'])}" if code == -signal.SIGKILL else told


def user_error(failure: dict[str, Any]) -> str:
    """The exception of *failure* with its line in the user's own code; empty: it is of something else.

    Where memory ends is no mistake of the line that asks for it.
    """
    is_mistake = bool(failure.get("user_line")) and classify(failure) is Status.CRASHED
    return _raised(failure) if is_mistake else ""


def _raised(failure: dict[str, Any]) -> str:
    at = f" at {line}" if (line := failure.get("user_line")) else ""
    return f"{failure['types'][0]}{at}: {_told(failure)}"


def _told(failure: dict[str, Any]) -> str:
    """What the message of *failure* says in its first line, or in the one that names memory or mistake."""
    message: str = failure["message"].strip()
    if message.startswith(_COMPILER):
        return f"{telling_line(message)}; give it a C++ compiler that works, or use compile: false"
    lines = message.splitlines() or [""]
    full = next((line for line in lines if _DEVICE_FULL.search(line)), None)
    if full is None:
        return lines[0]
    told = full if full == lines[0] else f"{lines[0]}: {full}"
    if not _is_pinned(failure):
        return told
    free = bytes_text(failure["device_free"])
    return f"{told} (of pinned host memory: {free} of the device were free)"


def killed_text(memory: CgroupMemory | None) -> str:
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
