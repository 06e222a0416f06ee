"""Processes of a run: each carries the run's id, so that none is left behind.

A process state is a letter of ``/proc/PID/stat`` (man 5 proc): T and t are stopped, D is a wait that no
signal ends, Z has ended and waits to be reaped.
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from distbench.system.machine import RUN_ID_VARIABLE

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent *parent* exits for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # the parent exited before the kernel was asked to watch it
        os._exit(1)


def resume_without_parent() -> None:
    """Undo ``die_with_parent``: have the kernel only continue this process if it is stopped by then.

    It is for a process that ends in order by itself after its parent, unless it is stopped. An early SIGCONT
    does no harm: it comes when the thread that started this process ends.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of all descendants of this process that have lost their own."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children(exclude: Collection[int] = (), timeout_s: float = 5.0) -> None:
    """Kill and reap this process's children except *exclude*, and with ``adopt_orphans`` theirs in turn.

    One in an uninterruptible wait is left after *timeout_s* seconds.
    """
    end = time.monotonic() + timeout_s
    while _reap_children() and time.monotonic() < end:
        left = [pid for pid in child_pids() if pid not in exclude]
        if not left:
            return
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.01)


def child_pids() -> list[int]:
    """Ids of the children of this process."""
    return [pid for pid, parent in _parents().items() if parent == os.getpid()]


def _reap_children() -> bool:
    """Reap the children that have ended; return True if others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_tree(root: int, timeout_s: float = 5.0) -> None:
    """Kill all descendants of process *root*, which would survive its end, and then *root*."""
    end = time.monotonic() + timeout_s
    while left := [pid for pid in _descendants(root) if process_state(pid) not in ("", "Z")]:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    send_signal(root, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    parents, found = _parents(), [root]
    for known in found:
        found += [pid for pid, parent in parents.items() if parent == known]
    return found[1:]


def _parents() -> dict[int, int]:
    """Process -> its parent."""
    stats = {int(entry.name): _stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
    return {pid: int(stat[1]) for pid, stat in stats.items() if stat}


def process_state(pid: int) -> str:
    """State of process *pid*; empty if there is none."""
    return (_stat(pid) or [""])[0]


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the state on; none if the process has ended."""
    try:
        # the name in brackets may hold anything
        return (_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def runqueue_seconds(pid: int) -> float:
    """Seconds that the main thread of process *pid* was ready to run and had no CPU; 0 if unknown.

    The second field of ``/proc/PID/schedstat`` (Linux, Documentation/scheduler/sched-stats.rst).
    """
    try:
        return int((_PROC / f"{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def processes_of_run(run_id: str) -> list[int]:
    """Ids of all live processes of run *run_id* except this one."""
    tag = f"{RUN_ID_VARIABLE}={run_id}".encode()
    pids = []
    for entry in _PROC.iterdir():
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


def kill_run(run_id: str, exclude: Collection[int] = (), timeout_s: float = 10.0) -> list[int]:
    """Kill all processes of run *run_id* except this one and *exclude*; return those still alive.

    A process in an uninterruptible wait for a device can't be killed.
    """
    end = time.monotonic() + timeout_s
    while left := [pid for pid in processes_of_run(run_id) if pid not in exclude]:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return left
        time.sleep(0.01)
    return []


def exit_text(code: int) -> str:
    """Text about the end of a process with exit *code*; negative: the signal that ended it."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def signal_name(number: int) -> str:
    """Name of a signal: ``SIGKILL``; ``signal 40`` for real-time signals, which have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def send_signal(pid: int, number: int) -> None:
    """Send signal *number* to *pid* unless it has exited."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
