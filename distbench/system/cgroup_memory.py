"""Memory accounts of the kernel: OOM kills, limit and peak.

The cgroup of this process comes first: ``memory.oom_control`` of cgroup v1 (the kernel's
admin-guide/cgroup-v1/memory.rst), ``memory.events`` of v2 (admin-guide/cgroup-v2.rst). Both count a kill
before its victim gets the SIGKILL, also one because the whole machine is out of memory. Where neither can
be read, ``oom_kill`` of /proc/vmstat counts the kills of the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from distbench.system.cgroup import find_cgroup, read_number, read_table

# v1's number for no limit depends on the page size; no machine has an exbibyte
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class CgroupMemory:
    """Memory as the kernel accounts for it."""

    scope: Literal["cgroup", "machine"]
    """Scope of the account: the cgroup of this process, or the whole machine."""
    oom_kills: int
    """Processes that the kernel killed because memory ran out."""
    limit_bytes: int | None = None
    """Total bytes available; None: unknown, or the cgroup has no limit."""
    peak_bytes: int | None = None
    """Peak bytes in use; None: not counted."""
    free_bytes: int | None = None
    """Free bytes below the tightest limit; None: unknown, or there is no limit."""

    def since(self, before: CgroupMemory | None) -> CgroupMemory | None:
        """This account with only the kills after *before*; None if those are unknown."""
        if before is None or before.scope != self.scope:
            return None
        return replace(self, oom_kills=self.oom_kills - before.oom_kills)


def read_cgroup_memory(proc: Path = Path("/proc")) -> CgroupMemory | None:
    """Account of this process's cgroup, otherwise of the machine; None if neither can be read."""
    for read in (_of_cgroup_v1, _of_cgroup_v2, _of_machine):
        try:
            return read(proc)
        except (OSError, LookupError, ValueError):
            # another version, no such controller, an older kernel, or nothing that this user may read
            continue
    return None


def _of_cgroup_v1(proc: Path) -> CgroupMemory:
    folder, *_ = find_cgroup(proc, "cgroup", "memory")
    limit = read_table(folder / "memory.stat")["hierarchical_memory_limit"]
    return CgroupMemory(
        "cgroup",
        oom_kills=read_table(folder / "memory.oom_control")["oom_kill"],
        limit_bytes=limit if limit < _NO_LIMIT else None,
        peak_bytes=read_number(folder / "memory.max_usage_in_bytes"),
        free_bytes=_left(limit, read_number(folder / "memory.usage_in_bytes")) if limit < _NO_LIMIT else None,
    )


def _of_cgroup_v2(proc: Path) -> CgroupMemory:
    # the tightest limit is that of the cgroup or of one around it
    around = find_cgroup(proc, "cgroup2", "")
    folder = around[0]
    limits = [limit for each in around if (limit := read_number(each / "memory.max")) is not None]
    left = [_left(read_number(each / "memory.max"), read_number(each / "memory.current")) for each in around]
    return CgroupMemory(
        "cgroup",
        oom_kills=read_table(folder / "memory.events")["oom_kill"],
        limit_bytes=min(limits, default=None),
        peak_bytes=read_number(folder / "memory.peak"),
        free_bytes=min((each for each in left if each is not None), default=None),
    )


def _left(limit: int | None, used: int | None) -> int | None:
    return None if limit is None or used is None else max(0, limit - used)


def _of_machine(proc: Path) -> CgroupMemory:
    total = re.search(r"MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text())
    limit = 1024 * int(total[1]) if total else None
    return CgroupMemory("machine", oom_kills=read_table(proc / "vmstat")["oom_kill"], limit_bytes=limit)
