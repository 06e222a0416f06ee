"""Find the rank that blocks the others after a time limit.

Without evidence against exactly one rank nobody is blamed: the stacks of all are in the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# frames of a main thread that waits for other ranks, such as in the store of the rendezvous;
# a backward pass may wait for them without showing it
_WAITING_FRAMES = re.compile(
    r"/torch/distributed/|/deepspeed/comm/|/torch/autograd/graph\.py"
    r"|/distbench/worker/rendezvous\.py"
)
# frames that call those, or compute: they prove nothing
_NEUTRAL_FRAMES = re.compile(r"/torch/|/contextlib\.py")
_BACKWARD_FRAMES = re.compile(r"/torch/autograd/graph\.py|/torch/_tensor\.py")
# the function that torch.distributed wraps around each of its operations
_WRAPPER = "wrapper"
_LIBRARY_FRAMES = re.compile(r"/distbench/|/deepspeed/")
_THREAD_HEADER = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE
)
_FRAME_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_CALLER = ", called by "
_PATHS_TEXT = (
    "; ranks wait for different operations if the path through the model depends on the data (a branch, an "
    "early exit): every rank must run the same layers"
)
_STATE_TEXTS = {
    "T": "is stopped (SIGSTOP or SIGTSTP)",
    "t": "is stopped by a debugger",
    "D": "is in uninterruptible sleep (state D), as when it waits for a device or a file system",
}


@dataclass(frozen=True)
class HangSuspect:
    """The rank suspected of a hang, with the evidence."""

    rank: int
    evidence: str
    """Continues ``rank 1 ...``; empty: it is behind the others."""


def stopped_rank(before: Mapping[int, str], after: Mapping[int, str], states: str) -> HangSuspect | None:
    """The only rank whose process is in one of the states *states*, both *before* and *after* a while."""
    found = [rank for rank, state in after.items() if state in states and before.get(rank) == state]
    return HangSuspect(found[0], _STATE_TEXTS[after[found[0]]]) if len(found) == 1 else None


def rank_outside_collective(logs: Mapping[int, str]) -> HangSuspect | None:
    """The only rank whose stack in its log of *logs* is outside any collective."""
    places = {rank: _frame_outside_wait(log) for rank, log in logs.items()}
    found = {rank: place for rank, place in places.items() if place}
    if None in places.values() or len(found) != 1 or len(places) < 2:
        return None
    ((rank, place),) = found.items()
    return HangSuspect(rank, f"is in {place}, outside any collective; the other ranks are waiting")


def waits_text(logs: Mapping[int, str]) -> str:
    """``rank 0 waits in barrier, called by step (model.py:51), rank 1 in a backward pass``, and a cause.

    By the stacks in the *logs* of all; empty if one of them shows no wait.
    """
    places = {rank: _wait_text(log) for rank, log in logs.items()}
    if not all(places.values()):
        return ""
    # a call of the user's own is known by its line
    cause = "" if all(_CALLER in place for place in places.values()) else _PATHS_TEXT
    if len(set(places.values())) == 1:
        return f"all ranks wait in {places[0]}{cause}"
    waits = ", ".join(f"rank {rank} in {place}" for rank, place in places.items())
    return f"{waits.replace(' in ', ' waits in ', 1)}{cause}"


def _wait_text(log: str) -> str:
    """Describe the operation in which a rank waits, and its caller in user code; empty: unknown."""
    operation = ""
    for file, line, function in _frames(log):
        if _BACKWARD_FRAMES.search(file):
            operation = "a backward pass"
        elif "/torch/distributed/" in file and function != _WRAPPER:
            operation = function
        elif not (_WAITING_FRAMES.search(file) or _NEUTRAL_FRAMES.search(file)):
            by = "" if _LIBRARY_FRAMES.search(file) else f"{_CALLER}{function} ({Path(file).name}:{line})"
            return f"{operation}{by}" if operation else ""
    return operation


def _frame_outside_wait(log: str) -> str | None:
    """Frame of a rank that waits for no other; empty: it may wait for one; None: there is no stack.

    *log* ends with the stacks that ``faulthandler`` wrote, the main thread's last.
    """
    for file, line, function in _frames(log):
        if _WAITING_FRAMES.search(file):
            return ""
        if not _NEUTRAL_FRAMES.search(file):
            return f"{function} ({Path(file).name}:{line})"
    return None


def _frames(log: str) -> list[tuple[str, str, str]]:
    """File, line and function of each frame of the main thread, innermost first; empty: no stack."""
    threads = _THREAD_HEADER.split(log)
    return _FRAME_LINE.findall(threads[-1]) if len(threads) > 1 else []
