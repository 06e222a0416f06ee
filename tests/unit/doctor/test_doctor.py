"""The doctor: each finding names what, where and what to do, and a healthy cluster has none."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from distbench.api.preflight import slow_gpu_variables
from distbench.doctor import Diagnosis, ProbeResult, check_host, diagnose, measured_links
from distbench.ipc.diagnosis_files import AllReduceTest, JoinResult, LinkTest, RankPlacement, RankReport
from distbench.metrics.telemetry.fake_nvml import FakeGpu, FakeNvml
from distbench.system.gpu_state import inspect_gpus
from distbench.system.host_state import HostState
from distbench.system.machine import detect_machine
from support.runs import QUICK
from support.suites import write_suite

HEALTHY = HostState(
    name="near",
    addresses=["10.0.0.1"],
    shm_free_bytes=8 << 30,
    max_open_files=65536,
    max_locked_bytes=8 << 20,
    infiniband_devices=[],
    free_bytes={"/runs": 1 << 40},
    unwritable_folders=[],
    build_locks={},
)
FACTS = {"python": "3.11", "packages": {"torch": "2.13"}, "cpu_cores": 8}


def cluster_facts(
    names: list[str], speeds: dict[tuple[int, int], float] | None = None, **first: Any
) -> ProbeResult:
    """A visit of one rank on each node, whose links carry 1 GB/s but for *speeds*; rank 0 says *first*."""
    size = len(names)

    def exchanges(own: int) -> list[LinkTest]:
        return [
            LinkTest(peer, 1 << 20, (1 << 20) / (speeds or {}).get((own, peer), 1e9), 1e-4, 0.0)
            for peer in range(own + 1, size)
        ]

    reports = [
        RankReport(
            RankPlacement(rank, 0, rank, size, size),
            facts={**FACTS},
            host_state=replace(HEALTHY, name=name),
            busy_cores=0.1,
            join=JoinResult(rank, 0.2, "eth0", f"10.0.0.{rank + 1}", None),
            link_tests=exchanges(rank),
            all_reduce=AllReduceTest(size, 1 << 20, 1e-3),
        )
        for rank, name in enumerate(names)
    ]
    reports[0] = replace(reports[0], **first)
    return ProbeResult(detect_machine("cpu"), size, reports)


def findings_with(visit: ProbeResult) -> list[Diagnosis]:
    return [each for each in diagnose(visit) if each.grade != "ok"]


def test_a_healthy_cluster_has_nothing_to_complain_about():
    told = diagnose(cluster_facts(["a", "b", "c"]))
    assert {each.grade for each in told} == {"ok"}
    assert {"nodes", "group", "interface", "alike", "clock", "links", "all-reduce"} == {e.check for e in told}


@pytest.mark.parametrize(
    ("state", "check", "grade", "words"),
    [
        ({"shm_free_bytes": 64 << 20}, "shared memory", "warning", "--shm-size"),
        ({"shm_free_bytes": None}, "shared memory", "warning", "/dev/shm"),
        ({"max_open_files": 256}, "open files", "warning", "ulimit -n"),
        ({"infiniband_devices": ["mlx5_0"]}, "locked memory", "problem", "mlx5_0"),
        (
            {"infiniband_devices": ["mlx5_0"], "max_locked_bytes": 64 << 30},
            "locked memory",
            "warning",
            "64.0 GiB",
        ),
        ({"free_bytes": {"/runs": 1 << 30}}, "disk", "warning", "/runs"),
        ({"free_bytes": {"/runs": 1 << 20}}, "disk", "problem", "/runs"),
        ({"unwritable_folders": ["/runs"]}, "disk", "problem", "/runs"),
        ({"build_locks": {"/cache/ops/adam/lock": 3600.0}}, "op locks", "warning", "rm /cache/ops/adam/lock"),
        ({"gpu_error": "NVML: Driver/library version mismatch"}, "GPUs", "problem", "mismatch"),
    ],
)
def test_what_a_host_lacks_is_told_with_a_remedy(state, check, grade, words):
    (found,) = check_host(replace(HEALTHY, **state), 8, where="node-1")
    assert (found.check, found.grade, found.where) == (check, grade, "node-1")
    assert words in found.what + found.remedy
    assert found.remedy


@pytest.mark.parametrize(
    "state",
    [
        {"max_open_files": -1},
        {"build_locks": {"/lock": 30.0}},
        {"infiniband_devices": ["mlx5_0"], "max_locked_bytes": -1},
    ],
)
def test_what_is_as_it_should_be_is_not_told(state):
    assert check_host(replace(HEALTHY, **state), 8) == []


@pytest.mark.parametrize(
    ("gpu", "grade", "words"),
    [
        (FakeGpu(memory_used=0, uncorrected_errors=2), "problem", "2 uncorrected ECC errors"),
        (FakeGpu(memory_used=0, reasons=0x40), "problem", "lowers its clocks"),
        (FakeGpu(processes={7: 1 << 30}), "problem", "in use by 1 other process"),
        (FakeGpu(memory_used=4 << 30), "warning", "4.00 GiB in use"),
        (FakeGpu(memory_used=0, lanes=4), "warning", "4 of 16 PCIe lanes"),
        (FakeGpu(memory_used=0, links=[True, False, True]), "problem", "1 of 3 NVLinks down"),
    ],
)
def test_a_gpu_that_is_not_well_is_named(gpu, grade, words):
    known, unknown = inspect_gpus(FakeNvml(FakeGpu(memory_used=0, links=[True]), gpu))
    assert not unknown
    (found,) = check_host(replace(HEALTHY, gpus=known), 2)
    assert found.grade == grade
    assert found.what.startswith("GPU 1 (NVIDIA H100 80GB HBM3) ")
    assert words in found.what


def test_gpus_that_do_not_answer_are_a_finding():
    assert inspect_gpus(FakeNvml(init_error="Unknown Error")) == ([], "NVML: Unknown Error")


def test_a_slow_node_is_told_from_a_slow_link():
    (node,) = findings_with(cluster_facts(["a", "b", "c", "d"], {(0, 2): 1e8, (1, 2): 1e8, (2, 3): 1e8}))
    assert (node.where, node.grade) == ("c", "problem")
    (link,) = findings_with(cluster_facts(["a", "b", "c", "d"], {(1, 2): 1e8}))
    assert link.where == "b - c"
    assert link.what == "800 Mbit/s, others have 8 Gbit/s"


def test_a_link_below_the_speed_of_its_hardware_is_told():
    own = JoinResult(0, 0.2, "ib0", "10.0.0.1", 100e9)
    (found,) = findings_with(cluster_facts(["a", "b"], join=own))
    assert found.what == "8 Gbit/s, ib0 has 100 Gbit/s"


def test_nodes_of_one_name_are_told():
    found = findings_with(cluster_facts(["localhost", "localhost", "c"]))
    assert found[0].what.startswith("2 nodes have the host name localhost")


def test_nodes_that_differ_are_told_apart():
    (found,) = findings_with(cluster_facts(["a", "b"], facts={**FACTS, "packages": {"torch": "2.12"}}))
    assert "nodes differ in packages: {'torch': '2.12'} on a, {'torch': '2.13'} on b" in found.what


def test_a_clock_that_is_off_is_told():
    (found,) = findings_with(
        cluster_facts(["a", "b"], link_tests=[LinkTest(1, 1 << 20, 1e-3, 1e-4, -7200.0)])
    )
    assert (found.check, found.where) == ("clock", "b")
    assert found.what.startswith("2 h 00 min behind")


def test_a_busy_node_is_told():
    (found,) = findings_with(cluster_facts(["a", "b"], busy_cores=3.0))
    assert (found.where, found.what) == ("a", "other processes keep 3.0 of 8 cores busy")


def test_a_rank_that_never_met_the_others_is_named():
    visit = cluster_facts(["a", "b"])
    visit.reports[1] = replace(
        visit.reports[1], join=None, all_reduce=None, error="DistStoreError: timed out"
    )
    visit.reports[0] = replace(visit.reports[0], join=None, link_tests=[], all_reduce=None)
    visit.missing[0] = "had not finished after 60 s"
    told = [(each.where, each.what) for each in findings_with(visit)]
    assert told == [
        ("a, rank 0", "meeting the others: rank 0 had not finished after 60 s"),
        ("b, rank 1", "meeting the others: DistStoreError: timed out"),
    ]


def test_messages_that_get_lost_after_a_meeting_point_to_the_mtu():
    join = JoinResult(0, 0.2, "eth0", "10.0.0.1", None, 9000)
    (finding,) = findings_with(
        cluster_facts(["a", "b"], join=join, error="RuntimeError: Timed out", link_tests=[])
    )
    assert (finding.check, finding.where) == ("group", "a, rank 0")
    assert finding.what == "exchanging messages: RuntimeError: Timed out"
    assert "9000 bytes, the MTU of eth0: ping -M do -s 8972 10.0.0.2." in finding.remedy
    assert "firewall" not in finding.remedy


def test_nodes_that_do_not_meet_point_to_firewalls_and_interfaces():
    (finding,) = findings_with(
        cluster_facts(["a", "b"], join=None, error="RuntimeError: refused", link_tests=[])
    )
    assert finding.what == "meeting the others: RuntimeError: refused"
    assert "no firewall separates the nodes" in finding.remedy
    assert "GLOO_SOCKET_IFNAME" in finding.remedy


def test_ranks_of_one_host_that_do_not_meet_are_not_asked_for_their_nodes():
    (finding,) = findings_with(cluster_facts(["a"], join=None, error="RuntimeError: refused"))
    assert "of this host to itself" in finding.remedy
    assert "nodes" not in finding.remedy


def test_a_rank_of_which_nothing_came_is_a_problem_and_its_links_are_unknown():
    visit = cluster_facts(["a", "b", "c"])
    del visit.reports[2]
    visit.missing[2] = "was killed by SIGKILL"
    (found,) = findings_with(visit)
    assert (found.check, found.where) == ("group", "rank 2")
    assert found.what == "no report: was killed by SIGKILL"
    assert [link.name for link in measured_links(visit)] == ["a - b"]


def test_gpus_that_are_not_there_are_a_mistake(distbench, tmp_path):
    done = distbench("doctor", "--device", "cuda", "--out", str(tmp_path / "runs"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "device = 'cuda': launcher local has no such device; use cpu, or auto" in done.stderr


def test_a_launcher_that_can_start_nothing_is_a_mistake(distbench, monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    done = distbench("doctor", "--set", "launcher=slurm", "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "--set launcher=slurm: launcher.slurm: not inside a Slurm allocation" in done.stderr


def test_a_launcher_whose_jobs_can_not_be_followed_examines_nothing_elsewhere(distbench, tmp_path):
    done = distbench("doctor", "--on", "pretend", "--nodes", "2", "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert (
        "--on pretend: this launcher can't submit jobs; run distbench doctor on that machine" in done.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_a_run_begins_with_what_is_wrong_with_its_host(distbench, tmp_path):
    lock = tmp_path / "cache" / "ops" / "adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 0))
    suite = write_suite(tmp_path, f"{QUICK}strategies: [pretended]\nlauncher: pretend\n")
    done = distbench(
        "run", str(suite), "--out", str(tmp_path / "runs"), DISTBENCH_CACHE=str(tmp_path / "cache")
    )
    assert f"warning: op locks: {lock} is" in done.stderr


@pytest.mark.train
def test_this_machine_is_examined(distbench, tmp_path):
    done = distbench("doctor", "--json", "--out", str(tmp_path / "runs"))
    told = json.loads(done.stdout)
    checks = {each["check"]: each["grade"] for each in told["findings"]}
    assert {"nodes", "group", "links", "all-reduce"} <= checks.keys()
    assert checks["group"] == "ok"
    (link,) = told["links"]
    assert link["kind"] == "inside nodes"
    assert link["bits_per_s"] > 1e6
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.train
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(size):
    from distbench.worker.links import round_robin_pairs

    made = list(round_robin_pairs(range(size)))
    pairs = [pair for pairs in made for pair in pairs]
    assert sorted(pairs) == [(a, b) for a in range(size) for b in range(a + 1, size)]
    for each in made:
        members = [member for pair in each for member in pair]
        assert len(set(members)) == len(members)


def test_what_makes_every_time_on_a_gpu_worthless_is_warned_of():
    (warning,) = slow_gpu_variables({"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"})
    assert "CUDA_LAUNCH_BLOCKING = 1" in warning and "unset it" in warning
    assert slow_gpu_variables({"CUDA_LAUNCH_BLOCKING": "0", "PYTORCH_NO_CUDA_MEMORY_CACHING": ""}) == []
