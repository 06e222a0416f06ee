"""CPUs that a cgroup leaves: read from files of both versions, and of a real one with a quota."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.metrics.telemetry.host import HostReader
from distbench.system.cpus import QuotaPeriods, core_count, cpu_quota, quota_periods
from support.runs import OF_OUR_OWN, QUICK
from support.suites import write_suite

V1 = ("4:cpu,cpuacct:/job/7\n", "/ cpu cgroup cgroup rw,cpu,cpuacct")
V2 = ("0::/job/step\n", "/ uni cgroup2 cgroup2 rw")
USABLE = len(os.sched_getaffinity(0))
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")


def stat(periods: int, throttled: int, time: str = "throttled_usec 5") -> str:
    return f"nr_periods {periods}\nnr_throttled {throttled}\n{time}\n"


def test_the_quota_of_cgroup_v1_counts_as_do_those_around_it(cgroup_files):
    cgroup_files.cgroups(*V1)
    for folder, quota in (("cpu/job/7", 150_000), ("cpu/job", 120_000), ("cpu", -1)):
        cgroup_files.write(f"{folder}/cpu.cfs_quota_us", f"{quota}\n")
        cgroup_files.write(f"{folder}/cpu.cfs_period_us", "100000\n")
    cgroup_files.write("cpu/job/7/cpu.stat", stat(40, 3, "throttled_time 5"))
    cgroup_files.write("cpu/job/cpu.stat", stat(50, 9, "throttled_time 5"))
    cgroup_files.write("cpu/cpu.stat", stat(0, 0))
    assert cpu_quota(cgroup_files.proc) == 1.2
    assert core_count(cgroup_files.proc) == 1
    assert quota_periods(cgroup_files.proc) == QuotaPeriods(50, 12)


def test_counts_never_fall_whichever_cgroup_is_throttled(cgroup_files):
    cgroup_files.cgroups(*V2)
    for folder in ("uni/job/step", "uni/job"):
        cgroup_files.write(f"{folder}/cpu.max", "100000 100000")
    seen = []
    for own, around in (((100, 30), (90, 29)), ((100, 30), (91, 30)), ((101, 30), (92, 31))):
        cgroup_files.write("uni/job/step/cpu.stat", stat(*own))
        cgroup_files.write("uni/job/cpu.stat", stat(*around))
        seen.append(quota_periods(cgroup_files.proc))
    assert seen == [QuotaPeriods(100, 59), QuotaPeriods(100, 60), QuotaPeriods(101, 61)]


@pytest.mark.parametrize(
    ("own", "around", "quota"),
    [
        ("250000 100000", "max 100000", 2.5),
        ("max 100000", "50000 100000", 0.5),
        ("max 100000", "max 100000", None),
        # a kernel without the controller, or a file that is none
        ("", "", None),
        ("0 0", "max 100000", None),
    ],
)
def test_the_quota_of_cgroup_v2_is_the_tightest(cgroup_files, own, around, quota):
    cgroup_files.cgroups(*V2)
    cgroup_files.write("uni/job/step/cpu.max", own)
    cgroup_files.write("uni/job/cpu.max", around)
    cgroup_files.write("uni/job/step/cpu.stat", stat(10, 1))
    assert cpu_quota(cgroup_files.proc) == quota
    assert core_count(cgroup_files.proc) == (USABLE if quota is None else max(1, min(USABLE, int(quota))))
    counted = quota_periods(cgroup_files.proc)
    # the cgroup around it has a quota, and no counts
    assert counted == (QuotaPeriods(10, 1) if quota == 2.5 else None)


def test_without_cgroups_all_cpus_of_the_affinity_mask_count(tmp_path):
    assert (cpu_quota(tmp_path), core_count(tmp_path), quota_periods(tmp_path)) == (None, USABLE, None)
    assert "quota_periods" not in HostReader().read()[0] or cpu_quota() is not None


@pytest.fixture
def cell() -> Iterator[Path]:
    """A cgroup with a fifth of a CPU: less than a busy machine leaves anyway."""
    folder = CPU_GROUPS / f"distbench-{os.getpid()}"
    if os.geteuid() or not (CPU_GROUPS / "cpu.cfs_quota_us").exists():
        pytest.skip("needs root and the CPU controller of cgroup v1, or runs in a container without it")
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("20000")
    yield folder
    folder.rmdir()


PROBE = """
import json, time
from distbench.metrics.telemetry.host import HostReader
from distbench.system.machine import detect_machine, machine_facts

before = HostReader().read()[0]
while time.process_time() < 0.3:
    pass
after = HostReader().read()[0]
print(json.dumps([detect_machine("cpu").devices, machine_facts()["cpu_quota"], before, after]))
"""


def test_a_real_quota_is_seen_and_its_throttled_periods_are_counted(cell):
    joined = f'echo $$ > {cell}/cgroup.procs && exec "$0" -c "$1"'
    done = subprocess.run(
        ["sh", "-c", joined, sys.executable, PROBE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    devices, quota, before, after = json.loads(done.stdout)
    assert (devices, quota) == (1, 0.2)
    assert after["throttled_periods"] > before["throttled_periods"]
    assert after["quota_periods"] >= after["throttled_periods"]


def plan_in(cell: Path, suite: Path, cores: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """``plan`` in *cell*, of a process that may use *cores* cores."""
    joined = f'echo $$ > {cell}/cgroup.procs && exec "$0" -m distbench plan "$1"'
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:cores])
    try:
        command = ["sh", "-c", joined, sys.executable, str(suite)]
        environment = {**os.environ, **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("quota", "cores", "own"),
    [(20_000, USABLE, "a CPU quota allows 0.2"), (150_000, 1, "this machine has 1")],
    ids=["quota", "affinity mask"],
)
def test_a_suite_that_needs_more_cores_is_refused_by_the_tighter_limit(cell, tmp_path, quota, cores, own):
    (cell / "cpu.cfs_quota_us").write_text(str(quota))
    suite = write_suite(tmp_path, f"{QUICK}strategies: [ddp]\nlauncher: local\n")
    done = plan_in(cell, suite, cores)
    told = f"2 ranks need 2 CPU cores, but {own}; use fewer ranks"
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


@pytest.mark.skipif((os.cpu_count() or 1) > USABLE, reason="this process is bound to some of the cores")
def test_a_quota_is_no_binding_of_cores(cell, tmp_path):
    suite = write_suite(tmp_path, f"{QUICK.replace(*OF_OUR_OWN)}strategies: [ddp]\nlauncher: env\n")
    placed = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    done = plan_in(cell, suite, USABLE, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", **placed)
    assert "bound to" not in done.stderr, done.stderr
    assert "ddp/ws2" in done.stdout, done.stderr
