"""Steps that a framework takes, on real ranks: the same training, or a refusal, and what it costs."""

import json

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from support.runs import call

SUITE = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
optimizer: {name: adamw, clip_grad_norm: 0.05}
measure: {warmup: 1, steps: 3, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, memory, communication]
limits: {step: 60}
world_sizes: [2]
"""
CHECK = "check: {steps: 2, perturbed: 4, fp64: false}\n"
UNEQUAL = 'data: {user: {dataset: "datasets_of_users:Unequal", weigh_labels: true}}\n'
SCHEDULE = "schedule: cosine, warmup_steps: 2, total_steps: 8, clip_grad_norm"
SAME = {EQUIVALENT, ROUNDING}


def test_a_framework_takes_the_steps_of_the_same_training(run_suite):
    text = SUITE + CHECK + "strategies: [ddp]\nengine: [native, accelerate, fabric]\n"
    # accelerate launch sets it, and a number of steps that a script gives would yield to it
    text += "env: {ACCELERATE_GRADIENT_ACCUMULATION_STEPS: 1}\n"
    done = run_suite(text.replace("clip_grad_norm", SCHEDULE))
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 3
    assert set(done.verdicts.values()) <= SAME
    framed = {name.rpartition("=")[2]: case for name, case in done.cases.items()}
    assert {case["status"] for case in framed.values()} == {"measured"}
    # one reduction for the two micro-batches of a step
    assert {case["values"]["comm_calls"]["value"] for case in framed.values()} == {1}
    told = {
        each["case"]["engine"]["name"]: each["effective"].get("framework", "")
        for file in done.folder.glob("trials/*/0/record.json")
        for each in [done.read(file)]
    }
    assert told.pop("native") == ""
    assert {name: text.rpartition(" ")[0] for name, text in told.items()} == {
        "accelerate": "accelerate",
        "fabric": "lightning-fabric",
    }
    shown = json.loads(call("show", str(done.folder), "--view", "engines", "--json").stdout)
    assert {row["engine"] for row in shown["rows"]} == {"accelerate", "fabric"}
    assert all(row["step_s"] > 0 and row["native_step_s"] > 0 for row in shown["rows"])


GRID = [
    ("accelerate", "{zero: {stage: [1, 2, 3]}}", 3),
    ("accelerate", "{zero: {stage: 2, offload_optimizer: cpu}}", 1),
    ("fabric", "{fsdp: {sharding: [full, grad_op]}}", 2),
    ("fabric", "{fsdp: {reduce_each_micro_batch: false}}", 1),
    ("accelerate", "{ddp: {gradient_as_bucket_view: true, bucket_cap_mb: 1}}", 1),
]


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("engine", "strategy", "count"), GRID, ids=lambda value: str(value))
def test_every_strategy_of_a_framework_is_the_same_training(run_suite, engine, strategy, count, precision):
    done = run_suite(
        SUITE.replace("clip_grad_norm", SCHEDULE)
        + CHECK
        + f"precision: {precision}\nstrategies: [{strategy}]\nengine: {engine}\n"
    )
    assert done.code == 0, done.errors
    assert len(done.verdicts) == count
    assert set(done.verdicts.values()) <= SAME


@pytest.mark.deep
@pytest.mark.parametrize(
    ("engine", "strategies"), [("accelerate", "ddp, {zero: {stage: 2}}"), ("fabric", "ddp, fsdp")]
)
def test_labels_of_unequal_rows_count_over_the_global_batch_in_a_framework(run_suite, engine, strategies):
    done = run_suite(
        SUITE.replace("data: text\n", UNEQUAL) + CHECK + f"strategies: [{strategies}]\nengine: {engine}\n"
    )
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= SAME


def test_means_of_the_means_of_ranks_are_another_training(run_suite):
    text = (
        SUITE.replace("data: text\n", UNEQUAL) + CHECK + "strategies: [ddp]\nengine: [native, rank_means]\n"
    )
    done = run_suite(text)
    words = {name.rpartition("=")[2]: word for name, word in done.verdicts.items()}
    assert words["native"] in SAME
    assert words["rank_means"] not in SAME


@pytest.mark.deep
def test_a_loss_that_is_no_number_is_the_same_outcome_in_each_engine(run_suite):
    text = SUITE.replace("small:Small", "small:NotANumber").replace("steps: 3", "steps: 5")
    done = run_suite(text + "strategies: [ddp]\nengine: [native, accelerate, fabric]\n")
    assert [case["status"] for case in done.cases.values()] == ["invalid_nan"] * 3


def test_a_framework_that_wraps_nothing_or_exits_or_is_broken_is_one_failed_case(run_suite):
    done = run_suite(SUITE + "strategies: [ddp]\nengine: [broken, bare, ends, native]\n")
    found = {name.rpartition("=")[2]: case for name, case in done.cases.items()}
    assert found["native"]["status"] == "measured"
    assert found["bare"]["status"] == "mismatch"
    assert "engine: expected 'DistributedDataParallel', found 'TorchEngine'" in found["bare"]["reason"]
    assert found["ends"]["status"] == "crashed"
    assert found["broken"]["status"] == "crashed"
    assert "a_library_that_is_not_there" in found["broken"]["reason"]
