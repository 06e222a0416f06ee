"""DeepSpeed's C++ ops, built once in a folder of our own before anything is timed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from distbench.case import Case
from distbench.strategies.zero import Zero

_RELEASE = 0.5
"""Seconds within which a builder that has closed its lock file has removed it."""
_BUILDERS = {"DeepSpeedCPUAdam": ["CPUAdamBuilder"], "FusedAdam": ["FusedAdamBuilder"]}


def build_ops(strategy: Zero, case: Case) -> list[str]:
    """Build the ops of *strategy* for *case* that the cache lacks; return what was removed before."""
    from deepspeed.accelerator import get_accelerator

    names = [
        *(["ShareMemCommBuilder"] if case.device == "cpu" else []),
        *_BUILDERS.get(strategy.optimizer(case)[1], []),
        *(["AsyncIOBuilder"] if "nvme" in strategy.offloads else []),
    ]
    cleared = clear_stale_locks(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    for name in names:
        builder = get_accelerator().create_op_builder(name)
        if builder is not None:
            builder.load(verbose=False)
    return [f"removed a stale build lock that nobody holds: {lock}" for lock in cleared]


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove build locks under *folder* that no process holds; return them.

    torch's builder waits for a lock file without end, and a build that was killed leaves it.
    The holder keeps the file open until just before it removes it, and raises if it is gone by then:
    a file is stale if nobody has it open, and still nobody a moment later.
    """
    stale = _unheld(folder)
    if stale:
        time.sleep(_RELEASE)
        stale &= _unheld(folder)
    for lock in stale:
        lock.unlink(missing_ok=True)
    return sorted(stale)


def _unheld(folder: Path) -> set[Path]:
    locks, held = set(folder.glob("*/lock")), _open_files()
    return {lock for lock in locks if lock.resolve() not in held}


def _open_files() -> set[Path]:
    files = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        # closed in the meantime, or another user's process
        with suppress(OSError):
            files.add(link.readlink())
    return files
