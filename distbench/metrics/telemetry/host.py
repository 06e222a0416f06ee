"""Host load from ``/proc``: CPU use, steal, other processes, clocks.

All readings are counters since boot, or take a few bytes: a sample costs well below a millisecond.
``/proc`` shows the whole machine, even inside a container; only the CPUs in the affinity mask of this process
are counted. A CPU quota does not change that; how often it throttled comes from the cgroup.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from distbench.metrics.base import NotAvailable
from distbench.metrics.telemetry.sampler import Row
from distbench.metrics.telemetry.windows import Window, enclosing_samples, mean_in_window, samples_with
from distbench.system.cpus import quota_periods
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import processes_of_run

NodeValues = dict[str, "float | NotAvailable"]

TICKS = os.sysconf("SC_CLK_TCK")
"""Ticks per second of CPU time in ``/proc``."""
# each counter is truncated to whole ticks, at both ends of the window
_UNCERTAIN_TICKS = 4
# reading the clock of a core may take an interrupt: a few of them are enough
_MAX_CLOCKS = 4


class HostReader:
    """Reader of the CPUs that this process may use, and of the CPU time of its own processes.

    ``own_s`` is CPU time of this process and all its descendants: fork servers, ranks, and the processes
    that those started from their main threads, including ended ones. That of *siblings*, other processes of
    the run (``sibling_agents``), and of their descendants is included.
    """

    name = "host"

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cpus: Path = Path("/sys/devices/system/cpu"),
        siblings: Sequence[int] = (),
    ) -> None:
        self._proc, self._siblings = proc, siblings
        self._usable_cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        clocks = (cpus / cpu / "cpufreq/scaling_cur_freq" for cpu in sorted(self._usable_cpus))
        self._clocks = [file for file in clocks if file.is_file()][:_MAX_CLOCKS]

    def read(self) -> list[Row]:
        try:
            busy, steal, total = self._cpus()
            load = float((self._proc / "loadavg").read_text().split()[0])
        except OSError as error:
            raise NotAvailable(f"{error.filename}: {error.strerror}") from error
        row: Row = {"busy_s": busy, "steal_s": steal, "total_s": total, "load": load}
        if periods := quota_periods(self._proc):
            row |= {"quota_periods": periods.all, "throttled_periods": periods.throttled}
        return [{**row, "own_s": self._own(), "frequency_hz": self._frequency()}]

    def close(self) -> list[Row]:
        return []

    def _cpus(self) -> tuple[float, float, float]:
        """(busy, stolen, total) CPU seconds since boot."""
        busy = steal = total = 0
        for line in (self._proc / "stat").read_text().splitlines():
            cpu, *fields = line.split()
            if cpu in self._usable_cpus:
                # user nice system idle iowait irq softirq steal; a guest's time is part of user
                ticks = [int(field) for field in fields[:8]]
                total += sum(ticks)
                busy += sum(ticks[:3]) + sum(ticks[5:7])
                steal += ticks[7]
        return busy / TICKS, steal / TICKS, total / TICKS

    def _own(self) -> float | None:
        """CPU seconds of this process and its descendants; None if the kernel doesn't list them."""
        try:
            own = own_processes(self._proc, self._siblings)
            # and of their children that they have waited for
            return sum(_cpu_s(_stat(self._proc / str(pid)), with_children=True) for pid in own)
        except FileNotFoundError:
            return None

    def _frequency(self) -> float | None:
        if not self._clocks:
            return None
        return statistics.fmean(1000 * int(file.read_text()) for file in self._clocks)


def sibling_agents() -> list[int]:
    """Process ids of other agents of this agent's run on this host, and of what started them.

    Nodes may share a host, as tasks of Spark on one do.
    """
    return processes_of_run(os.environ[RUN_ID_VARIABLE]) if RUN_ID_VARIABLE in os.environ else []


def own_processes(proc: Path, siblings: Sequence[int] = ()) -> set[int]:
    """This process, those of *siblings* that still exist, and all their descendants.

    Raises:
        FileNotFoundError: the kernel lists no children (CONFIG_PROC_CHILDREN).
    """
    own = set(descendants(proc, os.getpid()))
    for root in siblings:
        with suppress(FileNotFoundError):
            own.update(descendants(proc, root))
    return own


def descendants(proc: Path, root: int) -> Iterator[int]:
    """Yield *root* and all its descendants by their main threads.

    Raises:
        FileNotFoundError: the kernel lists no children (CONFIG_PROC_CHILDREN).
    """
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            text = (proc / f"{pid}/task/{pid}/children").read_text()
        except OSError:
            if pid == root:
                raise
            # it has ended in the meantime
            continue
        todo += map(int, text.split())
        yield pid


def _stat(process: Path) -> list[str]:
    """Fields of ``stat`` from the state on; empty if the process has ended, or may not be read."""
    try:
        # the name in brackets may contain anything
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(stat: list[str], *, with_children: bool = False) -> float:
    # utime, stime, cutime and cstime are fields 14 to 17 of the whole line
    return sum(map(int, stat[11 : 15 if with_children else 13])) / TICKS


def host_values(rows: Sequence[Row], window: Window, ranks_cpu_s: float | None) -> NodeValues:
    """Columns of the host from the rows of ``HostReader``.

    *ranks_cpu_s* is the CPU time of all ranks in the window as measured by the ranks, None if unknown: less
    seen here means that they ran elsewhere.

    Raises:
        NotAvailable: there are no rows around the window.
    """
    rows = samples_with(rows, "busy_s", HostReader.name)
    first, last = enclosing_samples(rows, window)
    total = last["total_s"] - first["total_s"]
    if total <= 0:
        raise NotAvailable("no host sample advanced during the timed window")
    return {
        "host_load": first["load"],
        "host_steal": (last["steal_s"] - first["steal_s"]) / total,
        "host_foreign_cpu": foreign_cpu_share(first, last, ranks_cpu_s),
        "host_frequency": _frequency(rows, window),
        "host_quota_throttle": _throttled_share(first, last),
    }


def _throttled_share(first: Row, last: Row) -> float | NotAvailable:
    """Share of the periods of a CPU quota between two rows in which it throttled, or why there is none."""
    if first.get("quota_periods") is None or last.get("quota_periods") is None:
        return NotAvailable("no CPU quota (cgroup) is around the command")
    passed = last["quota_periods"] - first["quota_periods"]
    throttled = last["throttled_periods"] - first["throttled_periods"]
    # several cgroups may have been throttled in one period
    return min(1.0, throttled / passed) if passed > 0 else 0.0


def cpu_resolution(rows: Sequence[Row], window: Window) -> tuple[float, float]:
    """Usable CPUs, and the uncertainty of CPU shares around *window* from ticks, as a fraction.

    Raises:
        NotAvailable: no two samples reach into the window.
    """
    first, last = enclosing_samples(samples_with(rows, "total_s"), window)
    total = last["total_s"] - first["total_s"]
    return max(1.0, total / (last["at"] - first["at"])), tick_uncertainty(total)


def tick_uncertainty(total_s: float) -> float:
    """Fraction of *total_s* CPU seconds that counters in ticks can't resolve."""
    return _UNCERTAIN_TICKS / TICKS / total_s


def foreign_cpu_share(first: Row, last: Row, ranks_cpu_s: float | None = None) -> float | NotAvailable:
    """Fraction of CPU time that others took between two readings of ``HostReader``, or why it is unknown."""
    if first["own_s"] is None or last["own_s"] is None:
        return NotAvailable("this kernel does not list the children of a process (CONFIG_PROC_CHILDREN)")
    own = last["own_s"] - first["own_s"]
    # half: ticks and process times come from different clocks
    if ranks_cpu_s is not None and own < ranks_cpu_s / 2:
        return NotAvailable(
            "the CPU time of the ranks is unknown, because they are not child processes of the launcher"
        )
    taken: float = last["busy_s"] - first["busy_s"] - own
    total: float = last["total_s"] - first["total_s"]
    # two clocks: if others take all CPU time, they can seem to take more
    return min(1.0, max(0.0, taken) / total)


def _frequency(rows: Sequence[Row], window: Window) -> float | NotAvailable:
    try:
        return mean_in_window(rows, "frequency_hz", window)
    except NotAvailable:
        return NotAvailable("cpufreq is not available, as in most virtual machines")


# a process is busy if it takes more than this fraction of one CPU over the trial
_BUSY = 0.1


class OtherProcesses:
    """Comparison of the processes of the machine at the start and at the end of a trial.

    Reading all of them takes milliseconds, so it is done only twice. Processes that end before the
    second reading are not seen; ``host_foreign_cpu`` counts them.
    """

    name = "others"

    def __init__(self, proc: Path = Path("/proc"), siblings: Sequence[int] = ()) -> None:
        self._proc, self._siblings = proc, siblings
        self._before: dict[tuple[int, int], float] | None = None
        self._began = 0.0

    def read(self) -> list[Row]:
        if self._before is None:
            self._began, self._before = time.monotonic(), self._all()
        return []

    def close(self) -> list[Row]:
        before, passed = self._before, time.monotonic() - self._began
        if before is None or passed <= 0:
            return []
        own = own_processes(self._proc, self._siblings)
        now = {key: spent for key, spent in self._all().items() if key[0] not in own}
        parts = [(spent - before.get(key, 0.0)) / passed for key, spent in now.items()]
        return [{"others_busy": sum(part > _BUSY for part in parts), "others_most": max(parts, default=0.0)}]

    def _all(self) -> dict[tuple[int, int], float]:
        """CPU seconds of every process by its id and start time, as ids are reused."""
        stats = {int(entry.name): _stat(entry) for entry in self._proc.iterdir() if entry.name.isdigit()}
        return {(pid, int(stat[19])): _cpu_s(stat) for pid, stat in stats.items() if stat}
