"""Offload to a disk: what it takes and moves by theory, what the disk gives, and what lies on it."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import Batch, PluginChoice, PrecisionConfig
from distbench.core.machine import Machine
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.disk import Disk
from distbench.metrics.disk.probe import BLOCK_BYTES, probe_disk
from distbench.record.run_folder import Run
from distbench.strategies.zero import Zero, disk
from distbench.strategies.zero.config import ModelSizes, configuration
from distbench.views.disk import DiskView
from support.records import case, info, measured, run_of
from support.suites import SuiteText

ALL = {"offload_optimizer": "nvme", "offload_parameters": "nvme", "nvme_path": "/fast disk/{a}[1]"}
DISK_CASE = case("zero", 2, strategy=PluginChoice("zero", ALL))
MACHINE = Machine("cpu", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=True, has_compiler=True)


def test_what_a_disk_gives_is_measured_in_whole_passes_and_leaves_no_file(tmp_path):
    moved = probe_disk(tmp_path / "new", min_seconds=0.0, blocks=4)
    assert {way: each.bytes for way, each in moved.items()} == {
        "read": 4 * BLOCK_BYTES,
        "written": 4 * BLOCK_BYTES,
    }
    assert all(each.rate > 0 for each in moved.values())
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_system_that_knows_no_way_past_the_page_cache_is_named():
    with pytest.raises(
        NotAvailable, match=r"can't read and write /proc/self/fd/x with O_DIRECT: No such file"
    ):
        probe_disk(Path("/proc/self/fd/x"))


@pytest.mark.parametrize(
    ("options", "micro", "read", "written"),
    [
        # of 500 elements: masters, gradients and two moments, 16 bytes
        ({"offload_optimizer": "nvme"}, 1, 8000, 8000),
        # and 2 bytes for each pass over the layers, forward and backward, and once for the update
        ({"offload_optimizer": "nvme", "offload_parameters": "nvme"}, 3, 8000 + 6 * 1000, 9000),
        ({"offload_parameters": "nvme"}, 1, 2000, 1000),
    ],
)
def test_what_a_step_moves_by_theory(options, micro, read, written):
    zero, bf16 = Zero(**options, nvme_path="x"), PrecisionConfig(compute="bf16")
    of = dataclasses.replace(DISK_CASE, batch=Batch(24, 12 // micro, micro), precision=bf16)
    assert zero.disk_traffic(of, 1000) == {"read": read, "written": written}
    assert Zero().disk_traffic(of, 1000) is None


def test_a_model_of_any_size_is_stepped_in_parts_and_fits_into_the_buffers():
    zero = Zero(**ALL)
    sizes = disk.sizes(zero, ModelSizes(9_000_000, 1_000_001, 4_000_001), 2)
    assert sizes == {"sub_group_size": 500_001, "nvme_buffer_size": 2_000_001}
    section = configuration(zero, DISK_CASE, sizes)["zero_optimization"]
    assert section["sub_group_size"] == 500_001
    assert section["offload_param"]["buffer_size"] == 2_000_001
    # by DeepSpeed's own the first 1e9 elements would stay in memory
    assert section["offload_param"]["max_in_cpu"] == 0
    assert disk.sizes(zero, ModelSizes(9, 1, 1), 2)["sub_group_size"] * 4 == disk.MIN_SWAP_BYTES


def test_a_trial_has_a_folder_of_its_own_that_is_among_its_leftovers(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "4711")
    folder = disk.trial_folder(ALL["nvme_path"])
    assert folder == Path("/fast disk/{a}[1]/distbench-offload-4711")
    patterns = [pattern.format(port=4711) for pattern in Zero(**ALL).leftovers]
    assert any(folder.match(pattern.lstrip("/")) for pattern in patterns)
    placed = disk.with_folder(configuration(Zero(**ALL), DISK_CASE, {}), folder)["zero_optimization"]
    assert {placed[key]["nvme_path"] for key in ("offload_optimizer", "offload_param")} == {str(folder)}


@pytest.mark.parametrize("stage", [1, 2])
def test_before_stage_3_nothing_would_be_on_the_disk(stage):
    zero = Zero(stage=stage, offload_optimizer="nvme", nvme_path="x")
    assert "only in stage 3" in (zero.problem(DISK_CASE, MACHINE) or "")


def test_without_libaio_the_line_that_installs_it_is_told():
    lacking = dataclasses.replace(MACHINE, has_libaio=False)
    assert "apt-get install libaio-dev" in (Zero(**ALL).problem(DISK_CASE, lacking) or "")


def test_a_disk_without_room_is_named_with_what_it_has_and_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    needed = disk.disk_bytes(Zero(**ALL), DISK_CASE, 10**18)
    with pytest.raises(disk.OffloadDiskFullError) as told:
        disk.create_folder(str(tmp_path), needed)
    assert str(told.value).startswith(f"nvme_path = {tmp_path}: the disk is full ")
    assert str(told.value).endswith("need up to 8882 PiB; free some space")
    assert list(disk.create_folder(str(tmp_path), 0).iterdir()) == []


def test_what_lies_on_the_disk_is_counted_by_its_blocks_and_holes_are_told(tmp_path):
    files = {"optimizer": "zero_stage_3/optimizer/rank1", "parameters": "zero_stage_3/float32params/rank1"}
    for what, name in files.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.tensor.swp").write_bytes(os.urandom(8192 if what == "optimizer" else 4096))
    assert disk.bytes_on_disk(tmp_path, 1) == {"optimizer": 8192, "parameters": 4096}
    assert disk.bytes_on_disk(tmp_path, 0) == {"optimizer": 0, "parameters": 0}
    os.truncate(tmp_path / files["optimizer"] / "1.tensor.swp", 1 << 43)
    with pytest.raises(
        disk.OffloadDiskFullError, match=r"8\.00 TiB of the states that DeepSpeed wrote are missing"
    ):
        disk.bytes_on_disk(tmp_path, 1)


def row(rank: int, way: str, seconds: float) -> dict[str, Any]:
    return {"rank": rank, "way": way, "bytes": 1000, "seconds": seconds, "reason": None}


def trial(*rows: dict[str, Any], **changes: Any) -> TrialData:
    given = {
        "case": dataclasses.replace(DISK_CASE, world_size=3),
        "tokens_per_sample": 1,
        "samples": {"disk_read": [[100.0], [200.0], [50.0]], "disk_written": [[10.0], [20.0], [30.0]]},
        "phases": {},
        "tables": {"disk": [*rows]},
        "effective": {"parameters": 300},
        "nodes": {"a": [0, 1], "b": [2]},
    }
    return TrialData(**{**given, **changes})


def test_the_slowest_disk_counts_and_the_node_that_moves_most_for_its_disk():
    slow = [row(0, "read", 10), row(0, "written", 1), row(2, "read", 1), row(2, "written", 20)]
    numbers = Disk().summary(trial(*slow))
    assert (numbers["disk_read_rate"], numbers["disk_written_rate"]) == (100, 50)
    # node a: 300 bytes at 100 a second and 30 at 1000; node b: 50 at 1000 and 30 at 50
    assert numbers["disk_least_s"] == pytest.approx(3.03)
    assert numbers["disk_read_theory"] == 3 * 100 * (16 + 2 * 4)
    assert numbers["disk_written_theory"] == 3 * 100 * (16 + 4)


def test_what_could_not_be_measured_is_absent_for_its_reason():
    numbers = Disk().summary(trial({"rank": 0, "reason": "no O_DIRECT"}))
    assert str(numbers["disk_read_rate"]) == str(numbers["disk_least_s"]) == "no O_DIRECT"
    silent = trial(row(0, "read", 1), row(0, "written", 1), samples={"disk_read": [[1.0], [], [1.0]]})
    assert str(Disk().summary(silent)["disk_least_s"]) == "needs disk_read of every rank"
    with pytest.raises(NotAvailable, match="no training state is offloaded to a disk"):
        Disk().summary(trial(case=case("ddp")))


def test_a_case_that_waits_for_its_disk_is_told_in_the_view():
    columns = {
        name: {"unit": "", "better": None, "over_ranks": "first", "doc": "x."}
        for name in ("disk_read", "disk_least_s", "step_s", "disk_read_rate")
    }
    numbers = {"disk_read": 1e9, "disk_least_s": 0.6, "step_s": 1.0, "disk_read_rate": 2e9}
    fast = {**numbers, "disk_least_s": 0.1}
    records = [
        dataclasses.replace(measured(of, **values), columns={**measured(of).columns, **columns})
        for of, values in ((DISK_CASE, numbers), (case("fsdp"), fast), (case("ddp"), {}))
    ]
    run = run_of(*records)
    sheet = DiskView().table(run)
    assert [r.value("disk_share") for r in sheet.rows] == [0.6, 0.1]
    assert ["60% of a step is disk traffic" in note for note in sheet.notes] == [True]
    empty = DiskView().table(RunAnalysis(info(case("ddp")), records[2:]))
    assert (len(empty.rows), len(empty.notes)) == (0, 1)


SUITE = SuiteText("""
workload: {mlp: {in_features: 64, hidden: 1024, depth: 4, classes: 10}}
data: digits
batch: {global_batch_size: 16}
strategies:
  - zero: {stage: 3}
  - zero: {stage: 3, offload_optimizer: nvme, offload_parameters: nvme, nvme_path: DISK}
world_sizes: [2]
measure: {warmup: 2, steps: 3, trials: 1}
metrics: [steptime, throughput, memory, disk]
""")


# building DeepSpeed's ops for disks takes minutes
@pytest.mark.train
@pytest.mark.deep
def test_states_really_lie_on_the_disk_and_nothing_is_left_there(run_suite, tmp_path):
    finished = run_suite(SUITE.replace("DISK", str(tmp_path / "disk")))
    plain, moved = sorted(Run(finished.folder).records(), key=lambda record: record.case.label)
    assert moved.status == "measured", moved.reason
    assert moved.effective["offload"] == {"optimizer": "nvme", "parameters": "nvme"}
    assert moved.effective["on_disk"]["optimizer"] > 8 * moved.effective["parameters"] / 2
    assert moved.samples["loss"] == plain.samples["loss"]
    for way in ("read", "written"):
        theory = moved.values[f"disk_{way}_theory"]
        assert 0.5 * theory < moved.values[f"disk_{way}"] < 1.1 * theory
    assert moved.values["disk_least_s"] > 0
    # all of it in a phase of its own
    assert sum(row["seconds"] for row in moved.tables["disk"]) < moved.phases["probe"][0]
    assert plain.absent["disk_read"] == "no training state is offloaded to a disk"
    assert list((tmp_path / "disk").iterdir()) == []
    assert registry.create_plugin("strategies", moved.case.strategy).offload_folder == str(tmp_path / "disk")


DISK_JOBS = SuiteText("""
workload: {mlp: {in_features: 64, hidden: 1024, depth: 3, classes: 10}}
data: digits
batch: {global_batch_size: 16, gradient_accumulation_steps: 2}
optimizer: {schedule: linear, warmup_steps: 2, total_steps: 20}
strategies:
  - zero: {stage: 3}
  - zero: {stage: 3, offload_optimizer: nvme, nvme_path: DISK}
  - zero: {stage: 3, offload_optimizer: [nvme, none], offload_parameters: nvme, nvme_path: DISK, MORE}
world_sizes: [2]
measure: {trials: 0}
check: {steps: 3, fp32: false}
checkpoint: {steps_before: 2, steps_after: 2}
""")


@pytest.mark.train
@pytest.mark.deep
def test_states_on_the_disk_are_checked_and_resumed_as_all_others_are(run_suite, tmp_path):
    suite = DISK_JOBS.replace("DISK", str(tmp_path / "disk")).replace("MORE", "prefetch_bucket_size: 0")
    finished = run_suite(suite)
    verdicts = {name: one["equivalence"]["verdict"] for name, one in finished.cases.items()}
    assert set(verdicts.values()) <= {"equivalent", "equivalent within rounding"}, verdicts
    resumed = {(one["case"], one["training"]): one["verdict"] for one in finished.checkpoints}
    moved = [name for name in finished.cases if "nvme" in name]
    assert len(moved) == 3
    for name in moved:
        assert resumed[name, "full"] == "same", resumed
        assert resumed[name, "exchanged"] in ("same", "rounding"), resumed
        assert resumed[name, "sharded"] == "lacking", resumed
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.train
@pytest.mark.deep
def test_a_model_that_deepspeed_reads_ahead_twice_is_refused_with_what_to_set(run_suite, tmp_path):
    suite = DISK_JOBS.replace("DISK", str(tmp_path / "disk")).replace(", MORE", "")
    options = ["--only", "*params-nvme", "--set", "measure.trials=1", "--set", "check=null"]
    finished = run_suite(suite, *options, "--set", "checkpoint=null")
    (record,) = Run(finished.folder).records()
    assert (record.status, record.reason.split("; ")[-1]) == ("unsupported", "set prefetch_bucket_size: 0")
