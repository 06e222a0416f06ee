"""CPUs that this process may use: of its affinity mask, within the CPU quota of its cgroups."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from distbench.system.cgroup import find_cgroup, read_number, read_table

PROC = Path("/proc")


@dataclass(frozen=True)
class QuotaPeriods:
    """Periods (of 100 ms by default) that the kernel has enforced a CPU quota in."""

    all: int
    throttled: int
    """Those in which the quota was used up and a process had to wait."""


def core_count(proc: Path = PROC) -> int:
    """Number of CPU cores that this process may use, at least 1; a quota is rounded down."""
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota(proc)
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def cpu_quota(proc: Path = PROC) -> float | None:
    """CPUs that the tightest quota of a cgroup around this process allows; None: there is none."""
    quotas = [quota for folder in _cgroups(proc) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def quota_periods(proc: Path = PROC) -> QuotaPeriods | None:
    """Counts of the cgroups around this process that have a quota; None: there is none.

    The largest number of periods, and the sum of the throttled ones: neither falls from one call to the next,
    whichever cgroup is throttled.
    """
    counts = [each for folder in _cgroups(proc) if _quota(folder) is not None and (each := _periods(folder))]
    if not counts:
        return None
    return QuotaPeriods(max(each.all for each in counts), sum(each.throttled for each in counts))


def _cgroups(proc: Path) -> list[Path]:
    """Folders of the cgroups of this process that may have a quota, from the inside out."""
    for kind, controller in (("cgroup", "cpu"), ("cgroup2", "")):
        try:
            return find_cgroup(proc, kind, controller)
        except (OSError, LookupError, ValueError):
            # another version, or nothing that this user may read
            continue
    return []


def _quota(folder: Path) -> float | None:
    """Quota of the cgroup at *folder* in CPUs; None: it has none."""
    try:
        # v2: the quota, or max, and the period, both in microseconds
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        of_v1 = (read_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        quota, period = ("max" if each is None else str(each) for each in of_v1)
    # v1 says -1 for none
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _periods(folder: Path) -> QuotaPeriods | None:
    try:
        counts = read_table(folder / "cpu.stat")
        return QuotaPeriods(counts["nr_periods"], counts["nr_throttled"])
    except (OSError, LookupError, ValueError):
        return None
