"""Map exceptions, exit codes and messages to a trial status and a reason."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from distbench.core.errors import Mismatch, UnsupportedCase
from distbench.core.text import compiler_error_line
from distbench.core.units import format_bytes
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import DISK_FULL_ERRNOS, RankError
from distbench.record import Status
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.processes import exit_text

# the first that matches the exception, by the names of its types
_STATUS_OF_EXCEPTION = {
    Mismatch.__name__: Status.MISMATCH,
    UnsupportedCase.__name__: Status.UNSUPPORTED,
    "OutOfMemoryError": Status.OOM_GPU,
    "MemoryError": Status.OOM_HOST,
}
# memory of a device that torch's caching allocator does not hand out, as its C++ and NCCL report it: the
# CUDA context and modules, handles and workspaces of libraries, communicators, and pinned host memory
_DEVICE_OOM = re.compile(
    r"CUDA (driver )?error: out of memory|Triton Error \[CUDA\]: out of memory"
    r"|Cuda failure (\d+ )?'out of memory'|CU[A-Z]+_STATUS(_INTERNAL_ERROR_DEVICE)?_ALLOC(ATION)?_FAILED"
)
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|\[Errno 12\]"
    r"|unable to mmap .*Cannot allocate memory|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
)
# what a rank reports when its peer has exited: a symptom, not a cause
_SECONDARY_ERRORS = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket Timeout|remote process exit"
    r"|recvValue failed|sendBytes failed|store->get|Timed out waiting .*ms for|Application timeout"
    r"|NCCL communicator was aborted|Watchdog caught collective operation timeout",
    re.IGNORECASE,
)
# how the C++ runtime reports an exception that nothing caught, before it aborts the process
_UNCAUGHT = re.compile(r"^\s*what\(\):\s*(\S.*)$", re.MULTILINE)
# how gloo reports ranks whose collectives do not match, after its own file and line
_SIZE_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
# where in its own source gloo raised, which comes before the words that tell the cause
_GLOO_LOCATION = re.compile(r"( with )?\[(?:enforce fail at )?\S+\.(?:cc|cpp|h):\d+\][\s.:]*")
CANNOT_WRITE_TEXT = "and could not write its error file"
"""Part of the reason of a rank that could not even write, on its node, why it failed."""
# how torch.compile reports an error of the C++ compiler, with its whole command and output
_COMPILE_ERROR_PREFIX = "CppCompileError: "
# with this much of the device free, no handle, workspace or communicator has filled it
_AMPLE_DEVICE_MEMORY = 4 << 30


@dataclass(frozen=True)
class RankFailure:
    """End of a rank without a result: by an exception that it reported, or else unexpectedly."""

    rank: int
    at: float
    """``clock.now()`` when it was raised or seen."""
    phase: str
    error: RankError | None = None
    """The exception; None: it reported none."""
    exit: RankExit | None = None
    """Its end, if it reported no exception."""
    uncaught: str = ""
    """Message of the C++ exception that aborted it; empty: unknown, or none did."""

    @property
    def message(self) -> str:
        """Message of the exception; empty: it reported none."""
        return self.error.message if self.error else ""

    @property
    def status(self) -> Status:
        """Status of a trial whose first failure it is."""
        if self.exit and was_oom_killed(self.exit.memory):
            return Status.OOM_HOST
        types = self.error.types if self.error else []
        of_type = (status for type_, status in _STATUS_OF_EXCEPTION.items() if type_ in types)
        return next(of_type, None) or self._status_of_message() or Status.CRASHED

    @property
    def is_secondary(self) -> bool:
        """True if it is a symptom of the end of another rank, and no cause."""
        if self.exit:
            # an abort is what threads of gloo do when a peer exits
            is_abort = self.exit.code == -signal.SIGABRT
            return is_abort and (not self.uncaught or bool(_SECONDARY_ERRORS.search(self.uncaught)))
        return self.status is Status.CRASHED and bool(_SECONDARY_ERRORS.search(self.message))

    @property
    def reason(self) -> str:
        """Description in one sentence."""
        if self.error:
            if UnsupportedCase.__name__ in self.error.types:
                return self.message
            reason = f"rank {self.rank} in {self.phase}: {_exception_text(self.error)}"
            largest = ", ".join(self.error.largest)
            return f"{reason}; largest tensors: {largest}" if largest else reason
        assert self.exit
        code = self.exit.code
        reason = f"rank {self.rank} in {self.phase}: {exit_text(code)} before it wrote its result"
        if code in DISK_FULL_ERRNOS:
            return f"{reason}, {CANNOT_WRITE_TEXT}: {os.strerror(code)}"
        if self.uncaught:
            return f"{reason}: {self.uncaught}"
        return f"{reason}: {sigkill_text(self.exit.memory)}" if code == -signal.SIGKILL else reason

    @property
    def user_error(self) -> str:
        """The exception with its line in the user's code; empty: it comes from elsewhere.

        Running out of memory is no mistake of the line that allocates it.
        """
        is_mistake = self.error and self.error.user_line and self.status is Status.CRASHED
        return _exception_text(self.error) if self.error and is_mistake else ""

    def _status_of_message(self) -> Status | None:
        if self.error and _DEVICE_OOM.search(self.message):
            return Status.OOM_HOST if _is_pinned_memory(self.error) else Status.OOM_GPU
        return Status.OOM_HOST if _HOST_OOM.search(self.message) else None


def uncaught_text(log: str) -> str:
    """Message of the C++ exception that aborted a process, by the end of its *log*; empty: none is there."""
    message = found[-1].strip() if (found := _UNCAUGHT.findall(log)) else ""
    return _size_mismatch_text(message) or _without_location(message)


def _without_location(message: str) -> str:
    return _GLOO_LOCATION.sub(lambda found: ": " if found[1] else "", message)


def _size_mismatch_text(message: str) -> str:
    """Explain gloo's *message* of collectives that do not match; empty: it is of something else."""
    if not (sizes := _SIZE_MISMATCH.search(message)):
        return ""
    sent, expected = map(int, sizes.groups())
    return (
        f"ranks ran different collectives: another rank sent {sent:,} bytes where it expected {expected:,}; "
        "that happens if the path through the model depends on the data (a branch, an early exit): every "
        "rank must run the same layers"
    )


def _is_pinned_memory(error: RankError) -> bool:
    """True if the device had enough memory: CUDA reports unpinnable host memory the same way."""
    return (error.device_free or 0) >= _AMPLE_DEVICE_MEMORY


def was_oom_killed(memory: CgroupMemory | None) -> bool:
    """True if the kernel's OOM killer was active meanwhile."""
    return memory is not None and memory.oom_kills > 0


def _exception_text(error: RankError) -> str:
    at = f" at {error.user_line}" if error.user_line else ""
    return f"{error.types[0]}{at}: {_message_text(error)}"


def _message_text(error: RankError) -> str:
    """First line of the message of *error*, or the line that names the memory or the mistake."""
    message = error.message.strip()
    if message.startswith(_COMPILE_ERROR_PREFIX):
        return f"{compiler_error_line(message)}; give it a working C++ compiler, or use compile: false"
    if mismatch := _size_mismatch_text(message):
        return mismatch
    lines = _without_location(message).splitlines() or [""]
    full = next((line for line in lines if _DEVICE_OOM.search(line)), None)
    if full is None:
        return lines[0]
    text = full if full == lines[0] else f"{lines[0]}: {full}"
    if error.device_free is None or not _is_pinned_memory(error):
        return text
    return f"{text} (pinned host memory; {format_bytes(error.device_free)} of device memory were free)"


def sigkill_text(memory: CgroupMemory | None) -> str:
    """Describe who sent a SIGKILL that distbench did not send, by the kernel's counters."""
    if memory is None:
        return "not sent by distbench; probably by the kernel's OOM killer (its counters can't be read)"
    if not was_oom_killed(memory):
        return "not sent by distbench, and the kernel's OOM killer did not act during the trial"
    limit = format_bytes(memory.limit_bytes) if memory.limit_bytes is not None else "none"
    if memory.scope == "machine":
        killed = f"{memory.oom_kills:,} process{'es' * (memory.oom_kills != 1)} on this machine"
        return (
            f"the kernel's OOM killer ended {killed} during the trial, probably this one (counter of "
            f"the whole machine, which has {limit})"
        )
    peak = format_bytes(memory.peak_bytes) if memory.peak_bytes is not None else "not counted"
    return f"sent by the kernel's OOM killer (cgroup limit {limit}, peak {peak})"
