"""Out of memory, told from other ends by what the kernel counts: read from files, and drilled in a cgroup."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import error_file, result_file
from distbench.launchers.base import LaunchError
from distbench.record import Status
from distbench.system import cgroup_memory
from distbench.system.cgroup_memory import CgroupMemory
from support.cgroup_files import FakeCgroupFiles
from support.fake_launches import FakeLaunch, outcome
from support.runs import MODELS, Finished

GIB = 1 << 30


V1 = "9:name=systemd:/\n4:memory:/job/7\n1:cpu,cpuacct:/\n0::/\n"
V1_MOUNTS = (
    "/ cpu cgroup cgroup rw,cpu,cpuacct",
    "/ mem cgroup cgroup rw,memory",
    "/ uni cgroup2 cgroup2 rw",
)


def version_1(kernel: FakeCgroupFiles, limit: int) -> None:
    kernel.cgroups(V1, *V1_MOUNTS)
    kernel.write("mem/job/7/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    kernel.write("mem/job/7/memory.stat", f"cache 5\nhierarchical_memory_limit {limit}\n")
    kernel.write("mem/job/7/memory.max_usage_in_bytes", f"{GIB}\n")


def test_cgroup_v1_is_read(cgroup_files):
    version_1(cgroup_files, 2 * GIB)
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("cgroup", 2, 2 * GIB, GIB)


def test_the_largest_number_of_pages_is_no_limit(cgroup_files):
    version_1(cgroup_files, 9223372036854771712)
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("cgroup", 2, None, GIB)


def version_2(kernel: FakeCgroupFiles) -> None:
    kernel.cgroups("0::/job/step\n", "/ uni cgroup2 cgroup2 rw,nsdelegate")
    kernel.write("uni/job/step/memory.events", "low 0\nhigh 0\nmax 31\noom 3\noom_kill 1\n")
    kernel.write("uni/job/step/memory.max", "max\n")
    kernel.write("uni/job/step/memory.peak", f"{GIB}\n")
    kernel.write("uni/job/memory.max", f"{3 * GIB}\n")


def test_cgroup_v2_is_read_with_the_limit_of_a_cgroup_around_it(cgroup_files):
    version_2(cgroup_files)
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("cgroup", 1, 3 * GIB, GIB)


def test_what_is_left_is_counted_below_every_limit_around_it(cgroup_files):
    version_2(cgroup_files)
    cgroup_files.write("uni/job/step/memory.current", f"{GIB}\n")
    cgroup_files.write("uni/job/memory.current", f"{2 * GIB}\n")
    found = cgroup_memory.read_cgroup_memory(cgroup_files.proc)
    assert found is not None
    assert found.free_bytes == GIB
    version_1(cgroup_files, 2 * GIB)
    cgroup_files.write("mem/job/7/memory.usage_in_bytes", f"{GIB // 2}\n")
    found = cgroup_memory.read_cgroup_memory(cgroup_files.proc)
    assert found is not None
    assert found.free_bytes == 3 * GIB // 2


def test_a_kernel_before_5_19_counts_no_peak(cgroup_files):
    version_2(cgroup_files)
    (cgroup_files.mounts / "uni/job/step/memory.peak").unlink()
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("cgroup", 1, 3 * GIB, None)


def test_in_a_container_the_mount_begins_at_its_cgroup(cgroup_files):
    cgroup_files.cgroups("4:memory:/docker/ab\n", "/docker/ab mem cgroup cgroup rw,memory")
    cgroup_files.write("mem/memory.oom_control", "oom_kill 4\n")
    cgroup_files.write("mem/memory.stat", f"hierarchical_memory_limit {GIB}\n")
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("cgroup", 4, GIB, None)


def test_without_a_cgroup_that_can_be_read_the_machine_is_asked(cgroup_files):
    cgroup_files.cgroups("0::/../elsewhere\n", "/ uni cgroup2 cgroup2 rw")
    (cgroup_files.proc / "vmstat").write_text("nr_free_pages 7\noom_kill 5\n")
    (cgroup_files.proc / "meminfo").write_text("MemTotal:       1048576 kB\nMemFree: 5 kB\n")
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) == CgroupMemory("machine", 5, GIB, None)


def test_a_kernel_that_counts_nothing_is_told_from_one_that_counts_none(cgroup_files):
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) is None
    (cgroup_files.proc / "vmstat").write_text("nr_free_pages 7\n")
    assert cgroup_memory.read_cgroup_memory(cgroup_files.proc) is None


def test_kills_before_a_trial_are_not_of_it():
    before, after = CgroupMemory("cgroup", 3, GIB, 7), CgroupMemory("cgroup", 4, GIB, 9)
    assert after.since(before) == CgroupMemory("cgroup", 1, GIB, 9)
    assert after.since(None) is None
    assert after.since(CgroupMemory("machine", 3)) is None, "other processes are counted there"


class KilledHandle(FakeLaunch):
    """A rank that is killed at once, or whose parent is."""

    def __init__(self, memory: CgroupMemory | None, *, parent: bool = False) -> None:
        self._memory, self._parent = memory, parent

    def wait(self, seconds: float) -> list[RankExit]:
        if self._parent:
            raise LaunchError("the fork server was killed by SIGKILL", self._memory)
        return [RankExit(0, -signal.SIGKILL, time.time(), self._memory)]


@pytest.mark.parametrize("parent", [False, True], ids=["a rank", "its parent"])
@pytest.mark.parametrize(
    ("memory", "status", "told"),
    [
        (CgroupMemory("cgroup", 1, GIB, GIB), "oom_host", ("cgroup limit 1.00 GiB", "peak 1.00 GiB")),
        (CgroupMemory("cgroup", 1, None, None), "oom_host", ("cgroup limit none", "peak not counted")),
        (
            CgroupMemory("machine", 2, 4 * GIB),
            "oom_host",
            ("the kernel's OOM killer ended 2 processes on this machine", "whole machine", "4.00 GiB"),
        ),
        (CgroupMemory("cgroup", 0, GIB, GIB), "crashed", ("SIGKILL",)),
        (None, "crashed", ("SIGKILL",)),
    ],
)
def test_a_kill_is_called_what_the_kernel_counted(tmp_path, memory, status, told, parent):
    ending = outcome(KilledHandle(memory, parent=parent), tmp_path)
    assert ending.status == status
    assert [word for word in told if word not in ending.reason] == []


def test_a_trial_whose_ranks_had_all_delivered_is_measured_though_their_parent_was_killed(tmp_path):
    result_file(tmp_path, 0).write_text("{}")
    assert outcome(KilledHandle(None, parent=True), tmp_path).status is Status.MEASURED


def test_a_kill_that_nobody_counts_names_whose_it_often_is(tmp_path):
    assert "OOM killer" in outcome(KilledHandle(None), tmp_path).reason
    assert "did not act during the trial" in outcome(KilledHandle(CgroupMemory("cgroup", 0)), tmp_path).reason


class RaisedHandle(FakeLaunch):
    """Ranks that have reported what was raised in them, and ended."""

    def __init__(self, folder: Path, *failures: dict[str, object]) -> None:
        self._ranks = range(len(failures))
        for rank, failure in enumerate(failures):
            told = {"at": rank, "phase": "build", "types": ["RuntimeError"], **failure}
            error_file(folder, rank).write_text(json.dumps(told))

    def wait(self, seconds: float) -> list[RankExit]:
        return [RankExit(rank, 1, time.time()) for rank in self._ranks]


NCCL = "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.27.3\n"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (f"{NCCL}Last error:\nCuda failure 2 'out of memory'", "oom_gpu"),
        (f"{NCCL}Last error:\nCuda failure 'out of memory'", "oom_gpu"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom_gpu"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "oom_gpu"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "oom_host"),
        ("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", "oom_gpu"),
        ("Triton Error [CUDA]: out of memory", "oom_gpu"),
        ("[Errno 12] Cannot allocate memory", "oom_host"),
        ("unable to mmap 4096 bytes from file </dev/shm/x>: Cannot allocate memory (12)", "oom_host"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.", "oom_host"),
        ("CUDA error: an illegal memory access was encountered", "crashed"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "crashed"),
    ],
)
def test_memory_that_torch_does_not_hand_out_is_told_by_the_message(tmp_path, message, status):
    ending = outcome(RaisedHandle(tmp_path, {"message": message}), tmp_path)
    assert ending.status == status
    assert "memory" in ending.reason or "ALLOC" in ending.reason


def test_memory_that_could_not_be_pinned_is_the_hosts_by_what_was_free_on_the_device(tmp_path):
    failure = {"message": "CUDA error: out of memory\nSearch for", "device_free": 40 * GIB}
    ending = outcome(RaisedHandle(tmp_path, failure), tmp_path)
    assert ending.status is Status.OOM_HOST
    assert "pinned host memory; 40.0 GiB of device memory were free" in ending.reason


@pytest.mark.parametrize(
    "symptom",
    [
        f"{NCCL}ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
        "NCCL communicator was aborted on rank 0.",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    ],
)
def test_a_rank_out_of_memory_is_the_cause_and_not_the_one_that_lost_it(tmp_path, symptom):
    full = {"message": f"{NCCL}Cuda failure 2 'out of memory'\nconnection closed"}
    handle = RaisedHandle(tmp_path, {"message": symptom}, full)
    ending = outcome(handle, tmp_path, ranks=2)
    assert (ending.status, ending.failure and ending.failure.rank) == (Status.OOM_GPU, 1)


LEAK_SUITE = """
workload: {user: {model: "small:LeaksWithManyRows", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 4}
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
metrics: [steptime]
check: true
strategies: [ddp]
world_sizes: [2]
"""
LIMIT = 3 * GIB // 2


@pytest.fixture
def memory_cgroup(drill) -> Iterator[Path]:
    """A memory cgroup below that of this process, limited to ``LIMIT``."""
    paths = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    version_1 = "memory" in paths
    name = "memory" if version_1 else ""
    made = Path("/sys/fs/cgroup", name, paths[name][1:], f"distbench-drill-{os.getpid()}")
    try:
        made.mkdir()
        (made / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        if made.is_dir():
            made.rmdir()
        drill.impossible(f"no memory cgroup can be made here: {error}")
    yield made
    made.rmdir()


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("a reference leaks in a memory cgroup of 1.5 GiB")
def test_out_of_memory_in_a_cgroup_is_called_so_and_the_next_candidate_is_tried(
    tmp_path, memory_cgroup, drill
):
    (tmp_path / "suite.yaml").write_text(LEAK_SUITE)
    run = [
        sys.executable,
        "-m",
        "distbench",
        "run",
        str(tmp_path / "suite.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]
    confined = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(memory_cgroup / "cgroup.procs"), *run]
    done = subprocess.run(confined, cwd=MODELS, capture_output=True, text=True, check=False)
    records = [Finished.read(file) for file in tmp_path.glob("out/*/checks/*/*/record.json")]
    references = [record for record in records if record["job"]["options"]["role"] == "reference"]
    failed = [record for record in records if record["status"] != "measured"]
    assert failed, done.stderr
    drill.noticed(failed[0]["wall_s"])
    drill.seen(failed[0]["reason"])
    assert {(record["status"], record["failure"]["rank"]) for record in failed} == {("oom_host", 0)}
    assert all("cgroup limit 1.50 GiB, peak 1.50 GiB" in record["reason"] for record in failed)
    instead = [record for record in references if record["status"] == "measured"]
    assert [record["case"]["batch"]["micro_batch_size"] for record in instead] == [4] * len(failed)
    assert "equivalent (adamw and sgd): 1 of 1 case" in done.stdout
