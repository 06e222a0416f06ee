"""The seam of launchers: ranks on several nodes, and a watch that trusts no clock but its own."""

import os
import time
from pathlib import Path
from threading import Event, Semaphore

import pytest

from distbench.analysis.communication import multi_rank_rows
from distbench.core.measurement import TimeLimits
from distbench.ipc.launch_spec import RankRange
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import (
    PhaseTimer,
    ProgressMark,
    ProgressWriter,
    log_file,
    progress_file,
    read_progress,
    result_file,
)
from distbench.launchers.local import visible_devices_by_index
from distbench.metrics.telemetry.fake_nvml import FakeGpu, FakeNvml
from distbench.record import NODE_LOST_PHASE, RankDevice, Status
from distbench.record.run_folder import Run as RunFolder
from support.fake_launches import FakeLaunch, outcome
from support.runs import QUICK

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.train
def test_ranks_on_two_nodes_meet_where_rank_0_is(run_suite):
    finished = run_suite(QUICK + "launcher: two_nodes\nstrategies: [ddp]\n")
    (case,) = finished.cases.values()
    assert case["status"] == "measured", case["reason"]
    (folder,) = finished.folder.glob("trials/*/0")
    assert {file.name for file in folder.glob("node*.log")} == {"node0.log", "node1.log"}
    (record,) = RunFolder(finished.folder).records()
    assert record.nodes == {"node-0": [0], "node-1": [1]}
    assert record.devices == [RankDevice("cpu"), RankDevice("cpu")]
    assert {row["nodes"] for row in record.tables["collectives"]} == {2}
    assert record.values["comm_between_bytes"] == record.values["comm_bytes"] > 0
    assert 0 < record.values["comm_between_exposed_s"] <= record.values["comm_exposed_s"]
    assert record.values["comm_between_s"] <= record.values["comm_s"]
    assert record.values["comm_between_busbw"] > 0
    assert record.absent["comm_inside_bytes"] == "each rank is on its own node"
    assert record.absent["comm_inside_busbw"] == "each rank is on its own node"
    assert record.absent["node_sent_bytes"].startswith("GLOO_SOCKET_IFNAME")
    assert record.values["node_bytes_theory"] == pytest.approx(record.values["comm_bytes"])


@pytest.mark.train
@pytest.mark.deep
def test_a_hybrid_shard_gathers_inside_nodes_and_reduces_between_them(run_suite):
    suite = (
        QUICK.replace("[2]", "[4]")
        + "launcher: two_nodes\nstrategies: [{fsdp: {sharding: hybrid, shards: 2}}]\n"
    )
    (record,) = RunFolder(run_suite(suite).folder).records()
    assert record.status is Status.MEASURED, record.reason
    calls = {(row["op"], row["group"], row["nodes"]) for row in multi_rank_rows(record)}
    assert {("all_gather", "0,1", 1), ("all_gather", "2,3", 1)} <= calls
    assert {("all_reduce", "0,2", 2), ("all_reduce", "1,3", 2)} <= calls
    assert not [op for op, _, nodes in calls if op == "all_gather" and nodes > 1]
    inside, between = (record.values[f"comm_{where}_bytes"] for where in ("inside", "between"))
    assert inside + between == record.values["comm_bytes"]
    # each of two ranks gathers and reduces the whole, and all-reduces its half
    theory = {row["op"]: row["bytes"] for row in record.tables["collectives_theory"]}
    assert between == pytest.approx(theory["all_reduce"], rel=0.01)


def test_a_rank_knows_its_place_on_its_node_and_in_the_launch():
    share = RankRange(8, count=4, first=4, node_rank=1, node_count=2, master_address="10.0.0.1")
    assert not share.has_rank_0
    assert share.environment(2, 29500) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "8",
        "RANK": "6",
        "LOCAL_WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "GROUP_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }


class OneRankHandle(FakeLaunch):
    """A rank that gives a sign of life whenever it is waited for, and ends after some of them."""

    def __init__(self, folder: Path, signs: int, clock: float) -> None:
        self._folder, self._left, self._clock = folder, signs, clock
        self._progress = ProgressWriter(progress_file(folder, 0))
        log_file(folder, 0).touch()

    def wait(self, seconds: float) -> list[RankExit]:
        time.sleep(0.05)
        if self._left:
            self._left -= 1
            self._progress.report("time", 1)
            os.utime(progress_file(self._folder, 0), (self._clock, self._clock))
            return []
        result_file(self._folder, 0).write_text("{}")
        return [RankExit(0, 0, time.time())]


@pytest.mark.parametrize("clock", [0.0, 4e9], ids=["behind", "ahead"])
def test_a_rank_is_not_taken_for_hung_by_the_clock_of_its_host(tmp_path, clock):
    limits = TimeLimits(step=0.3, start=0.3)
    assert outcome(OneRankHandle(tmp_path, 10, clock), tmp_path, limits=limits).status is Status.MEASURED


class EndlessHandle(OneRankHandle):
    """A rank that delivers its result, and then hangs, as in gloo's teardown."""

    def wait(self, seconds: float) -> list[RankExit]:
        super().wait(seconds)
        return []


@pytest.mark.drill("a rank hangs after it has delivered its result")
def test_a_rank_that_hangs_at_its_end_costs_no_trial(tmp_path):
    handle = EndlessHandle(tmp_path, 0, time.time())
    ending = outcome(handle, tmp_path, limits=TimeLimits(trial=5), exit_grace_s=0.2)
    assert ending.status is Status.MEASURED, ending.reason


class DisconnectedHandle(OneRankHandle):
    """A rank that makes no progress, because a node is gone."""

    def wait(self, seconds: float) -> list[RankExit]:
        time.sleep(0.05)
        return []

    def silent_node(self) -> str | None:
        return "no heartbeat from the agent on far for 9 s"


def test_a_limit_that_passes_while_a_node_is_silent_is_not_the_fault_of_a_rank(tmp_path):
    ending = outcome(DisconnectedHandle(tmp_path, 0, 0.0), tmp_path, limits=TimeLimits(start=0.1))
    assert ending.status is Status.CRASHED
    assert ending.reason.startswith("no heartbeat from the agent on far for 9 s; limits.start")
    assert ending.failure and ending.failure.phase == NODE_LOST_PHASE


class SilentHandle(OneRankHandle):
    def wait(self, seconds: float) -> list[RankExit]:
        time.sleep(0.05)
        os.utime(progress_file(self._folder, 0))
        return []


@pytest.mark.parametrize("phase", ["start", "time"])
def test_a_rank_that_gives_no_new_sign_is_late_though_its_file_is_touched(tmp_path, phase):
    silent = SilentHandle(tmp_path, 0, 0.0)
    ProgressWriter(progress_file(tmp_path, 0)).report(phase)
    ending = outcome(silent, tmp_path, limits=TimeLimits(step=0.3, start=0.3))
    assert ending.status is (Status.INIT_TIMEOUT if phase == "start" else Status.HANG)


def test_two_signs_of_the_same_step_differ(tmp_path):
    progress = ProgressWriter(progress_file(tmp_path, 0))
    signs = []
    for _ in range(2):
        progress.report("checkpoint", 10_000)
        signs.append(read_progress(progress_file(tmp_path, 0)))
    assert signs[0] != signs[1]
    assert read_progress(progress_file(tmp_path, 1)) is None


def test_a_rank_waits_for_no_slow_file_system_once_three_signs_were_slow(tmp_path):
    file, opened, written = progress_file(tmp_path, 0), Event(), Semaphore(0)

    def write(descriptor: int, line: bytes, offset: int) -> int:
        time.sleep(0.02)
        if b"time" in line:
            opened.wait()
        size = os.pwrite(descriptor, line, offset)
        written.release()
        return size

    progress = ProgressWriter(file, write)
    for phase in ("start", "build", "warmup"):
        progress.report(phase)
    # nobody lets these through, so a rank that waited for them would never be at the last
    for step in range(50):
        progress.report("time", step)
    assert (read_progress(file) or ProgressMark()).phase == "warmup"
    opened.set()
    while (read_progress(file) or ProgressMark()).step != 49:
        assert written.acquire(timeout=60)


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [("GPU-bbbb,GPU-a", "1,0"), ("1,0", None), ("GPU-c", None), ("GPU-", None), ("MIG-a", None), ("", None)],
)
def test_gpus_named_by_uuid_are_told_to_ranks_by_number(visible, numbers):
    told = visible_devices_by_index(
        FakeNvml(FakeGpu(uuid="GPU-aaaa"), FakeGpu(uuid="GPU-bbbb")), {VISIBLE: visible}
    )
    assert told.get(VISIBLE) == numbers
    assert "CUDA_DEVICE_ORDER" in told or not told, "numbers are those of the bus"
    assert visible_devices_by_index(FakeNvml(init_error="no driver"), {VISIBLE: visible}) == {}


def test_a_phase_that_is_passed_several_times_has_the_time_of_all(tmp_path):
    phases = PhaseTimer(ProgressWriter(progress_file(tmp_path, 0)))
    for _ in range(3):
        with phases.phase("check"):
            time.sleep(0.01)
    assert phases.seconds["check"] >= 0.03
