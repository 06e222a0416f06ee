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
    folder, _ = _cgroup(proc, "cgroup", "memory")
    limit = _table(folder / "memory.stat")["hierarchical_memory_limit"]
    return CgroupMemory(
        "cgroup",
        oom_kills=_table(folder / "memory.oom_control")["oom_kill"],
        limit_bytes=limit if limit < _NO_LIMIT else None,
        peak_bytes=_number(folder / "memory.max_usage_in_bytes"),
        free_bytes=_left(limit, _number(folder / "memory.usage_in_bytes")) if limit < _NO_LIMIT else None,
    )


def _of_cgroup_v2(proc: Path) -> CgroupMemory:
    folder, top = _cgroup(proc, "cgroup2", "")
    # the tightest limit is that of the cgroup or of one around it
    around = [folder, *(each for each in folder.parents if each.is_relative_to(top))]
    limits = [limit for each in around if (limit := _number(each / "memory.max")) is not None]
    left = [_left(_number(each / "memory.max"), _number(each / "memory.current")) for each in around]
    return CgroupMemory(
        "cgroup",
        oom_kills=_table(folder / "memory.events")["oom_kill"],
        limit_bytes=min(limits, default=None),
        peak_bytes=_number(folder / "memory.peak"),
        free_bytes=min((each for each in left if each is not None), default=None),
    )


def _left(limit: int | None, used: int | None) -> int | None:
    return None if limit is None or used is None else max(0, limit - used)


def _of_machine(proc: Path) -> CgroupMemory:
    total = re.search(r"MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text())
    limit = 1024 * int(total[1]) if total else None
    return CgroupMemory("machine", oom_kills=_table(proc / "vmstat")["oom_kill"], limit_bytes=limit)


def _cgroup(proc: Path, kind: str, controller: str) -> tuple[Path, Path]:
    """Folder of this process's cgroup, and the top of its hierarchy as far as it is mounted here.

    Raises:
        LookupError: there is no such hierarchy, or its part with the cgroup is not mounted here.
    """
    path = _path(proc, controller)
    for line in (proc / "self/mountinfo").read_text().splitlines():
        mount, _, what = line.partition(" - ")
        root, top = map(_unescaped, mount.split()[3:5])
        type_, _, options = what.split(" ", 2)
        # in a container the mounted part may begin at the cgroup itself
        if type_ == kind and controller in ["", *options.split(",")] and path.is_relative_to(root):
            return Path(top) / path.relative_to(root), Path(top)
    raise LookupError(f"{kind} {path} is not mounted")


def _path(proc: Path, controller: str) -> Path:
    """Path of this process's cgroup in the hierarchy of *controller*; empty for v2, which has none."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(path)
    raise LookupError(f"no cgroup with {controller or 'v2'}")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _table(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value in pairs}


def _number(file: Path) -> int | None:
    """Number in *file*; None if it says ``max``, or this kernel has no such file."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
