"""What only several GPUs can show: NCCL between them, who waits for whom, and a rank that is lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from gpu_runs import DEVICE, SMALL, measured, records, strategies, work

from distbench.core.job import MEASURE
from distbench.record import Record
from support.gpu_report import REHEARSAL, Check, Report
from support.runs import run_in

pytestmark = pytest.mark.gpus(2)

SHARDED = strategies("ddp", "{fsdp: {sharding: [full, grad_op]}}", "{zero: {stage: [1, 2, 3]}}")
TIMED = "precision: bf16\nmeasure: {warmup: 3, steps: 10, trials: 1, profile_steps: 3, unsynced_steps: 5}\n"


@pytest.fixture(scope="module")
def ran(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    suite = f"{work(world_size=2)}{SHARDED}{TIMED}launcher: local\n"
    trials = measured(tmp_path_factory.mktemp("two"), suite, gpu_report)
    ended = {label: f"{record.status}: {record.reason}" for label, record in trials.items()}
    assert {record.status.value for record in trials.values()} == {"measured"}, ended
    return trials


@pytest.mark.minutes(6)
def test_every_collective_is_found_in_the_trace(ran: dict[str, Record], check: Check) -> None:
    lost = {}
    for label, record in ran.items():
        rows = [row for row in record.tables["collectives"] if row["group_size"] > 1]
        lost[label] = sum(row.get("seconds") is None for row in rows)
        check.figure(f"{label} collectives, and those without a time", f"{len(rows)}, {lost[label]}")
        check.figure(f"{label} why", record.absent.get("comm_transfer_s", "all found"))
        assert rows, label
    assert lost == dict.fromkeys(ran, 0)


@pytest.mark.minutes(6)
def test_bytes_are_those_of_theory(ran: dict[str, Record], check: Check) -> None:
    for label, record in ran.items():
        ratio = record.values["comm_bytes"] / record.values["comm_bytes_theory"]
        check.figure(f"{label} bytes over theory", ratio)
        # ZeRO-3 does not gather again what still stands whole
        assert REHEARSAL or (0.5 if label == "zero3" else 0.9) < ratio < 1.1, label


@pytest.mark.minutes(6)
def test_what_is_exposed_is_told_alike_by_trace_and_by_difference(
    ran: dict[str, Record], check: Check
) -> None:
    values = ran["ddp"].values
    for name in ("comm_s", "comm_exposed_s", "comm_exposed_by_difference_s", "comm_wait_s", "step_s"):
        check.figure(name, values[name], "s")
    apart = values["comm_exposed_s"] - values["comm_exposed_by_difference_s"]
    # the profiler slows a step down, so they agree only roughly
    assert REHEARSAL or abs(apart) < 0.2 * values["step_s"]


@pytest.mark.minutes(6)
def test_nccl_is_up_before_the_engine_is_built(ran: dict[str, Record], check: Check) -> None:
    for label, record in ran.items():
        for name in ("start_s", "build_s", "first_step_s"):
            check.figure(f"{label} {name}", record.values[name], "s")
    starts = [record.values["start_s"] for record in ran.values()]
    assert REHEARSAL or max(starts) < 5 * min(starts), "a communicator takes as long in every strategy"


@pytest.mark.cuda
@pytest.mark.minutes(4)
def test_data_parallel_drives_both_from_one_process(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    suite = f"{work(world_size=2)}strategies: [dp, ddp]\n{TIMED}"
    both = measured(tmp_path, suite, gpu_report)
    told = {label: f"{record.status}: {record.reason}" for label, record in both.items()}
    assert {record.status.value for record in both.values()} == {"measured"}, told
    for label, record in both.items():
        check.figure(f"{label} step_s", record.values["step_s"], "s")
        check.figure(f"{label} memory_peak", record.values["memory_peak"], "B")
    assert both["dp"].values["final_loss"] == pytest.approx(both["ddp"].values["final_loss"], rel=5e-3)
    assert both["dp"].values.get("comm_bytes") != 0, "it broadcasts parameters and gathers gradients"


@pytest.mark.needs("deepspeed")
@pytest.mark.minutes(5)
def test_overlap_of_zero_3(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    seconds = {}
    for overlap in ("true", "false"):
        folder = tmp_path / overlap
        folder.mkdir()
        suite = f"{work(world_size=2)}strategies: [{{zero: {{stage: 3, overlap_comm: {overlap}}}}}]\n{TIMED}"
        (record,) = measured(folder, suite, gpu_report).values()
        assert record.effective["overlap_comm"] is (overlap == "true")
        seconds[overlap] = record.values["step_s"]
        check.figure(f"overlap_comm: {overlap}", seconds[overlap], "s")
    assert REHEARSAL or seconds["true"] < 1.05 * seconds["false"]


@pytest.mark.minutes(8)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replicas_are_equal_and_the_training_the_same(precision: str, check: Check, tmp_path: Path) -> None:
    suite = f"{work(SMALL, 8, world_size=2)}{SHARDED}precision: {precision}\nmeasure: {{trials: 0}}\n"
    done = run_in(tmp_path, f"{suite}check: {{steps: 5}}\n")
    verdicts = {name: case["equivalence"]["verdict"] for name, case in done.cases.items()}
    for name, verdict in verdicts.items():
        check.figure(name, verdict)
    assert verdicts and set(verdicts.values()) <= {"equivalent", "equivalent within rounding"}, verdicts


LOST = """
workload: {{user: {{model: "{model}", length: 32}}}}
data: text
device: {device}
world_sizes: [2]
strategies: [{strategy}]
batch: {{global_batch_size: 8}}
measure: {{warmup: 1, steps: 3, trials: 1}}
limits: {{start: 20, step: 20, build: 120}}
include:
  - {{strategy: {strategy}, world_size: 2, workload: {{user: {{model: "small:Small", length: 32}}}}}}
"""
ENDS = [
    ("ends:Killed", "crashed"),
    ("ends:Stops", "hang"),
    ("small:RaisesInRankOne", "crashed"),
    pytest.param("on_gpu:OutOfMemoryInRankOne", "oom_gpu", marks=pytest.mark.cuda),
]


@pytest.mark.minutes(4)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("model", "status"), ENDS)
def test_the_rank_that_is_lost_is_named_while_the_other_is_in_nccl(
    model: str, status: str, strategy: str, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    suite = LOST.format(model=model, strategy=strategy, device=DEVICE)
    trials = records(tmp_path, suite, gpu_report)[MEASURE]
    ended = {str(trial.case.workload.options["model"]): trial for trial in trials}
    check.figure("reason", ended[model].reason[:200])
    check.figure("wall", ended[model].wall_s, "s")
    assert ended[model].status == status, ended[model].reason
    assert ended[model].failure and ended[model].failure.rank == 1, ended[model].reason
    assert ended["small:Small"].status == "measured", ended["small:Small"].reason


@pytest.mark.minutes(4)
def test_ranks_may_build_for_longer_than_they_may_start(
    check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    """What NCCL exchanges through the store must not be bound by the deadline of the start."""
    suite = LOST.format(model="on_gpu:BuildsLateInRankOne", strategy="ddp", device=DEVICE)
    trials = records(tmp_path, suite, gpu_report)[MEASURE]
    assert {trial.status.value for trial in trials} == {"measured"}, [trial.reason for trial in trials]
    longest = max(trial.values["build_s"] for trial in trials)
    check.figure("build_s of the late rank", longest, "s")
    assert longest > 40


@pytest.mark.minutes(3)
def test_a_rank_that_is_late_makes_the_other_wait(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    suite = f"{work(world_size=2)}strategies: [sleepy]\n{TIMED}"
    record = measured(tmp_path, suite, gpu_report)["sleepy"]
    check.figure("comm_wait_s", record.values["comm_wait_s"], "s")
    check.figure("imbalance", record.values["imbalance"])
    # it sleeps for 0.15 s in every step, and the mean is over both
    assert record.values["comm_wait_s"] == pytest.approx(0.075, rel=0.5)


@pytest.mark.minutes(4)
def test_two_are_faster_than_one(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    rates = {}
    for world_size in (1, 2):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        head = work(batch=32, world_size=world_size)
        record = measured(folder, f"{head}strategies: [ddp]\n{TIMED}", gpu_report)["ddp"]
        rates[world_size] = record.values["tokens_per_s"]
        check.figure(f"tokens_per_s on {world_size}", rates[world_size], "tokens/s")
    assert REHEARSAL or rates[2] > 1.3 * rates[1]


@pytest.mark.gpus(4)
@pytest.mark.minutes(5)
def test_hybrid_shards_have_groups_of_their_own(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    options = "sharding: hybrid, replicas: 2, cpu_offload: [false, true]"
    suite = f"{work(world_size=4)}strategies: [{{fsdp: {{{options}}}}}]\n{TIMED}"
    ran = measured(tmp_path, f"{suite}launcher: {{local: {{oversubscribe: true}}}}\n", gpu_report)
    told = {label: f"{record.status}: {record.reason}" for label, record in ran.items()}
    for label, record in ran.items():
        rows = record.tables["collectives"]
        groups = sorted({str(row["group"]) for row in rows if row["group_size"] > 1})
        check.figure(f"{label} groups", ", ".join(groups))
        check.figure(f"{label} collectives without a time", sum(row.get("seconds") is None for row in rows))
    assert {record.status.value for record in ran.values()} == {"measured"}, told


@pytest.mark.cuda
@pytest.mark.gpus(8)
@pytest.mark.minutes(5)
def test_telemetry_of_eight_gpus_keeps_up(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    suite = f"{work(batch=64, world_size=8)}strategies: [ddp]\n{TIMED}".replace("steps: 10,", "steps: 400,")
    record = measured(tmp_path, suite, gpu_report)["ddp"]
    rows = [row for row in record.tables["telemetry"] if row.get("device") is not None]
    by_device = [[row["at"] for row in rows if row["device"] == i and row.get("at")] for i in range(8)]
    gaps = [max(b - a for a, b in itertools.pairwise(times)) for times in by_device]
    check.figure("longest gap between samples of a GPU", max(gaps), "s")
    assert max(gaps) < 2
