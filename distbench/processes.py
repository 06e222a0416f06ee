"""Processes of a run: every one carries the run's id, so that none can be left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from distbench.env import RUN_ID

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent *parent* ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # it ended before the kernel was asked to watch it
        os._exit(1)


def survive_parent() -> None:
    """Undo ``die_with_parent``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def tagged(run_id: str) -> list[int]:
    """Return the ids of all live processes of run *run_id* but this one."""
    tag = f"{RUN_ID}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # a zombie has no environment left, so it does not count
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            # it ended meanwhile, or belongs to somebody else
            continue
    return found


def kill_tagged(run_id: str, spare: Collection[int] = (), patience_s: float = 10.0) -> list[int]:
    """Kill all processes of run *run_id* but this one and *spare*; return those that would not die.

    A process in an uninterruptible wait for a device can't be killed by anyone.
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
    """Send signal *number* to *pid* unless it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
