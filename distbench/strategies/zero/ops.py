"""DeepSpeed's C++ ops, built once in a folder of our own before anything is timed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from distbench.case import Case
from distbench.strategies.zero import Zero

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
    The holder keeps the file open, so an unopened one is stale.
    """
    held = _open_files()
    stale = [lock for lock in folder.glob("*/lock") if lock.resolve() not in held]
    for lock in stale:
        lock.unlink(missing_ok=True)
    return stale


def _open_files() -> set[Path]:
    files = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        # closed in the meantime, or another user's process
        with suppress(OSError):
            files.add(link.readlink())
    return files
