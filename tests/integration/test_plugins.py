"""Adding a strategy, a workload, a data source, a metric or a launcher is one new file and no edit.

The files stand in ``tests/plugins``; the traps among them are what tools of today get wrong, and
must end as ``mismatch``.
"""

from collections.abc import Callable

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.record.run_folder import Run
from support.runs import QUICK, Done

Command = Callable[..., Done]

ONE_FILE_EACH = """
workload: line
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 3, trials: 1}
strategies: [ddp]
world_sizes: [2]
launcher: echo
"""


def test_a_dropped_in_launcher_is_what_a_plan_shows(distbench, tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(ONE_FILE_EACH)
    planned = distbench("plan", str(suite), "--commands")
    assert "\necho " in planned.stdout, planned.stderr


def test_dropped_in_workload_launcher_and_metric_reach_record_table_and_report(run_suite):
    finished = run_suite(ONE_FILE_EACH)
    (case,) = finished.cases.values()
    assert case["status"] == "measured", finished.errors
    assert case["values"]["beats"]["value"] == 6
    assert finished.record("ddp")["columns"]["beats"]["better"] == "higher"
    assert "Steps seen by all ranks together." in (finished.folder / "report.html").read_text()


PARTED = """
workload: {parted: {length: 32}}
batch: {global_batch_size: 8}
measure: {trials: 0}
check: {steps: 2, perturbed: 4, fp32: false, fp64: false}
strategies:
  - tp: {loss_parallel: true}
  - fsdp: {mesh: {tp: 2}}
  - pp: {mesh: {tp: [1, 2]}, micro_batches: 2, schedule: GPipe}
world_sizes: [2, 4]
launcher: {kept: {oversubscribe: true}}
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.deep)])
def test_a_model_of_ones_own_that_says_where_it_can_be_split_trains_so(run_suite, ranks):
    done = run_suite(PARTED.replace("[2, 4]", f"[{ranks}]"))
    assert done.code == 0, done.errors
    judged = {name: case["equivalence"] for name, case in done.cases.items() if case["equivalence"]}
    # two layers make no four stages, and two ranks no stages of two
    labels = ("tp+lp", "fsdp+tp2", "pp-gpipe" if ranks == 2 else "pp-gpipe+tp2")
    assert [name.rsplit("/", 2)[0] for name in judged] == [f"{label}/ws{ranks}" for label in labels]
    assert {each["verdict"] for each in judged.values()} <= {EQUIVALENT, ROUNDING}


TUNED = """
workload: {parted: {model: "small:Tuned", length: 32}}
data: text
batch: {global_batch_size: 8}
world_sizes: [2]
optimizer: {clip_grad_norm: 0.05}
launcher: {kept: {oversubscribe: true}}
strategies:
  - pp
  - fsdp: {version: 1}
  - zero: {stage: 1, mesh: {pp: 2}}
  - pp: {mesh: {dp_replicate: 2}, micro_batches: 2}
include: [{strategy: pp+ddp2, world_size: 4}]
exclude: [{strategy: pp+ddp2, world_size: 2}]
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
check: {steps: 2, perturbed: 4, fp64: false}
"""


@pytest.mark.deep
def test_a_model_whose_first_stage_is_frozen_trains_so_or_says_why_not(run_suite):
    done = run_suite(TUNED)
    assert done.code == 0, done.errors
    *trained, with_zero, with_ddp = done.cases.values()
    assert len(trained) == 2
    assert {each["equivalence"]["verdict"] for each in trained} <= {EQUIVALENT, ROUNDING}
    for refused, why in ((with_zero, "DeepSpeed's ZeRO"), (with_ddp, "torch's DDP")):
        assert refused["status"] == "unsupported"
        assert f"pipeline stage 0 has no trained parameter, and {why}" in refused["reason"]
    for record in (record for record in Run(done.folder).records() if record.status == "measured"):
        told = record.effective
        if record.job.kind == "measure":
            assert told["dtypes"]["optimizer_state"] == "fp32", "of the stage that has some"
            assert 0 < told["trained_parameters"] < told["parameters"]
            if record.case.strategy.name != "pp":
                continue
            for theory in ("comm_bytes_theory", "memory_states_theory"):
                assert record.absent[theory].startswith("theory assumes that all parameters are trained")


MISNAMED = """
workload: {misnamed: {dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 128, vocab_size: 256, more}}
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 1, trials: 1}
launcher: {kept: {oversubscribe: true}}
"""


@pytest.mark.parametrize(
    ("options", "strategies", "wrong", "right"),
    [
        (
            "tied: true",
            "tp, {fsdp: {mesh: {tp: 2}}}, {pp: {mesh: {tp: 2}, schedule: GPipe}}, "
            "{zero: {stage: 1, mesh: {tp: 2}}}",
            "blocks.*.attention.w_o",
            "blocks.*.attention.wo",
        ),
        ("experts: 4, top_k: 2", "ep", "blocks.*.ffn.expert", "blocks.*.ffn.experts"),
    ],
)
def test_modules_that_a_model_does_not_have_are_refused_with_those_that_it_has(
    options, strategies, wrong, right, run_suite
):
    suite = MISNAMED.replace("more", options)
    done = run_suite(f"{suite}world_sizes: [4]\nstrategies: [{strategies}]\n")
    assert len(done.cases) == len(strategies.split(", {"))
    for case in done.cases.values():
        assert case["status"] == "unsupported"
        assert f"Misnamed declares '{wrong}', and no module of the model has that name; " in case["reason"]
        assert f"did you mean '{right}'? Allowed: blocks" in case["reason"]


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("masquerade", "expected 'FSDPModule', found 'DistributedDataParallel'"),
        ("hidden_default", "clip_grad_norm: expected None, found 1.0"),
        (
            "{hidden_default: {clip_grad_norm: null, kernel: foreach}}",
            "optimizer.kernel: expected 'fused', found 'foreach'",
        ),
        ("apart", "ranks are not synchronised"),
        ("{apart: {admits: true}}", "dtypes.reduce: expected 'fp32', found None"),
    ],
)
def test_a_strategy_that_does_not_do_what_was_asked_for_is_a_mismatch(run_suite, strategy, told):
    finished = run_suite(QUICK + f"strategies: [{strategy}]\n")
    (case,) = finished.cases.values()
    assert case["status"] == "mismatch"
    assert told in case["reason"]
    assert finished.code == 1


def test_ranks_that_get_the_same_data_are_a_mismatch(run_suite):
    finished = run_suite(QUICK.replace("data: text", "data: same") + "strategies: [ddp]\n")
    (case,) = finished.cases.values()
    assert case["status"] == "mismatch"
    assert "rank 1 gets the same samples as rank 0" in case["reason"]


def test_ranks_that_split_a_copy_of_the_model_and_get_other_data_are_a_mismatch(run_suite):
    suite = QUICK.replace("data: text", "data: own").replace(
        '{user: {model: "small:Small", length: 32}}', "{transformer: {preset: tiny}}"
    )
    finished = run_suite(suite + "strategies: [tp]\n")
    (case,) = finished.cases.values()
    assert case["status"] == "mismatch"
    assert "rank 1 gets different samples than rank 0, although they share one copy" in case["reason"]
