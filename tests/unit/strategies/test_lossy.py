"""What DDP sends in place of gradients: theory, refusals, and the verdicts on real trainings."""

import dataclasses
import math
from typing import Any

import pytest

from distbench import plan
from distbench.adopt import export_case
from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, collective_traffic, compare_volume
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.errors import SuiteError, UsageError
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, ROUNDING
from distbench.jobs.measure import MeasureJob, short_measure
from distbench.record.run_folder import Run
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.ddp.lossy import are_replicas_equal, powersgd_elements
from distbench.suite import load_suite
from distbench.workloads.mlp import Mlp
from distbench.workloads.transformer import PRESETS, Transformer
from support.check_records import DDP
from support.records import case, measured
from support.runs import PLUGINS
from support.suites import write_suite
from support.theory_checks import bytes_by_operation

MACHINE = Machine("cpu", 8, {"torch": "9"}, has_libaio=False, has_compiler=True)


def lossy(**options: Any) -> Case:
    """A case of DDP with *options*."""
    strategy = DistributedDataParallel(**options)
    return case(strategy.label, 2, strategy=PluginChoice("ddp", options))


def test_of_a_matrix_two_factors_are_sent_and_what_gains_little_is_sent_whole():
    assert powersgd_elements([(64, 64)], 4, 2.0) == 4 * 128
    assert powersgd_elements([(64,), (64, 2), (1, 1)], 4, 2.0) == 64 + 128 + 1
    # a convolution is a matrix with a row for each of its outputs
    assert powersgd_elements([(32, 16, 3, 3)], 2, 2.0) == 2 * (32 + 144)
    # no product has a higher rank than its shorter side
    assert powersgd_elements([(8, 512)], 64, 0.5) == 8 * (8 + 512)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("tied", [True, False])
def test_tensors_by_formula_have_as_many_parameters_as_the_model(preset, tied):
    of = Transformer(preset=preset, tied=tied)
    assert sum(map(math.prod, of.tensor_shapes())) == of.parameters()
    mlp = Mlp(depth=3)
    assert sum(map(math.prod, mlp.tensor_shapes())) == mlp.parameters()


def test_bytes_are_those_of_the_factors_or_of_an_average_in_each_period():
    of, rank = lossy(powersgd_rank=2), DistributedDataParallel(powersgd_rank=2)
    workload = registry.create_plugin("workloads", of.workload)
    assert bytes_by_operation(rank, of, 0) == {
        "all_reduce": 4.0 * powersgd_elements(workload.tensor_shapes(), 2, 2.0)
    }
    unknown = dataclasses.replace(
        of, workload=PluginChoice("user", {"model": "models.small:Small", "length": 8})
    )
    assert bytes_by_operation(rank, unknown, 0) is None
    assert bytes_by_operation(DistributedDataParallel(local_sgd_period=4), of, 1000) == {"all_reduce": 1000.0}


def test_replicas_are_equal_until_they_are_local_and_right_after_each_average():
    equal = [
        updates
        for updates in range(12)
        if are_replicas_equal(DistributedDataParallel(local_sgd_period=4, local_sgd_start=2), updates)
    ]
    assert equal == [0, 1, 2, 3, 7, 11]


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        ({"powersgd_rank": 2}, {"world_size": 1}, "a single rank has nothing to reduce"),
        ({"powersgd_rank": 2, "local_sgd_period": 2}, {}, "no hook that does both"),
        ({"powersgd_start": 5}, {}, "powersgd_start = 5 has no effect without powersgd_rank"),
        ({"local_sgd_start": 5}, {}, "has no effect without local_sgd_period"),
        ({"powersgd_rank": 2, "sharded_optimizer": True}, {}, "not supported with sharded_optimizer"),
        ({"powersgd_rank": 2}, {"precision": PrecisionConfig(reduce="fp16")}, "precision.reduce = fp16"),
        ({"local_sgd_period": 2}, {"precision": PrecisionConfig(loss_scale=8.0)}, "precision.loss_scale = 8"),
        ({"local_sgd_period": 2}, {"optimizer": OptimizerConfig(name="muon", kernel="loop")}, "muon"),
    ],
)
def test_what_can_not_be_sent_so_is_refused(options, changes, why):
    of = dataclasses.replace(lossy(**options), **changes)
    assert why in (DistributedDataParallel(**options).problem(of, MACHINE) or "")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("powersgd_rank: 2, powersgd_start: 1", "powersgd_start.*must be at least 2"),
        ("powersgd_rank: 2, powersgd_start: 9", "changes its communication at step 9.*warm-up of 9 or more"),
        ("local_sgd_period: 4", "steps = 10: ddp.local4 communicates in cycles of 4.*use 8 or 12"),
        ("local_sgd_period: [2, 3, 4]", "in cycles of 3 steps.*use 12"),
    ],
)
def test_a_start_that_is_too_early_or_is_timed_is_a_mistake_as_is_a_part_of_a_period(strategy, why, tmp_path):
    suite = write_suite(
        tmp_path,
        f"workload: transformer\nbatch: {{global_batch_size: 8}}\nworld_sizes: [2]\n"
        f"measure: {{warmup: 4}}\nstrategies: [{{ddp: {{{strategy}}}}}]\n",
    )
    with pytest.raises(SuiteError, match=f"(?s){why}"):
        plan.make_plan(load_suite(suite), MACHINE)


def test_a_short_trial_is_as_long_as_the_latest_start_and_the_longest_period_need():
    cases, asked = [lossy(powersgd_rank=2), lossy(local_sgd_period=8)], MeasureConfig(warmup=3, steps=16)
    short = short_measure(asked, cases, 1, 3)
    assert (short.warmup, short.steps, short.trials) == (2, 8, 1)
    assert MeasureJob().problems(short, cases) == []
    assert short_measure(asked, [DDP], 1, 3).steps == 3


def test_steps_in_which_nothing_moves_are_steps_of_the_mean():
    def row(step: int, ranks: str, size: int) -> dict[str, Any]:
        told = {"op": "all_reduce", "group": ranks, "group_size": size, "nodes": 1, "dtype": "float32"}
        return {"rank": 0, "step": step, "place": 0, "bytes": 4000, **told}

    rows = [row(0, "0,1", 2), *(row(step, "0", 1) for step in (1, 2, 3))]
    theory = [{"rank": 0, "op": "all_reduce", "bytes": 1000.0}]
    record = measured(lossy(local_sgd_period=4), comm_bytes_theory=1000.0)
    record = dataclasses.replace(record, tables={"collectives": rows, "collectives_theory": theory})
    found = compare_volume(record)
    assert found and (found.measured, found.unexplained_by_op) == ({"all_reduce": 1000.0}, {})
    (kind,) = collective_traffic(record)
    assert (kind.calls, kind.bytes) == (0.25, 1000.0)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            {"powersgd_rank": 4, "powersgd_start": 9},
            ["matrix_approximation_rank=4", "start_powerSGD_iter=9", "(state, powerSGD_hook)"],
        ),
        (
            {"local_sgd_period": 8, "local_sgd_start": 5},
            ["PostLocalSGDState(None, alone, 5)", "period=8, warmup_steps=5", "(optimizer, averager)"],
        ),
    ],
)
def test_only_a_script_of_plain_torch_sends_so(options, lines):
    of = lossy(**options)
    with pytest.raises(UsageError, match=r"only a plain torch script .* use --as torch"):
        export_case("accelerate", of, {})
    (script,) = export_case("torch", of, {}).files.values()
    compile(script, "train_functions.py", "exec")
    assert [line for line in lines if line not in script] == []


SUITE = """
workload: {transformer: {dim: 32, depth: 2, heads: 2, kv_heads: 2, ffn_dim: 64, vocab_size: 256, seq_len: 16}}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
world_sizes: [2]
"""


@pytest.mark.train
def test_powersgd_of_full_rank_is_equivalent_and_of_a_low_rank_by_design_not(run_suite):
    done = run_suite(
        SUITE
        + """
optimizer: {name: sgd, lr: 0.1}
strategies:
  - ddp: {powersgd_rank: 1}
  - ddp: {powersgd_rank: 256, min_compression_rate: 0.001}
measure: {trials: 0}
check: {steps: 4, perturbed: 4, fp64: false}
"""
    )
    assert done.code == 0, done.errors
    assert done.verdict_by_label == {
        "ddp+powersgd1": DIFFERENT_BY_DESIGN,
        "ddp+powersgd256+rate0.001": ROUNDING,
    }


@pytest.mark.train
@pytest.mark.parametrize("warmup", [3, 4])
def test_what_local_sgd_moves_is_the_mean_of_whole_periods_wherever_they_are_cut(warmup, run_suite):
    done = run_suite(
        SUITE
        + f"""
strategies: [ddp: {{local_sgd_period: 4}}]
measure: {{warmup: {warmup}, steps: 4, trials: 1, profile_steps: 1}}
"""
    )
    (record,) = Run(done.folder).records()
    values, moved = record.values, compare_volume(record)
    assert values["comm_bytes"] == values["comm_bytes_theory"] > 0
    assert moved and not moved.unexplained_by_op and not moved.causes
    assert values["comm_transfer_s"] > 0 and values["comm_inside_busbw"] > 0
    phases = [row["phase"] for row in record.tables["memory"] if row["rank"] == 0]
    assert phases.count("step") == 1, "of memory one step is shown"


@pytest.mark.train
def test_only_steps_without_any_communication_tell_what_it_costs(run_suite):
    done = run_suite(
        SUITE
        + """
strategies: [ddp, ddp: {local_sgd_period: 2}, ddp: {sharded_optimizer: true}]
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0, unsynced_steps: 2}
"""
    )
    name = "comm_exposed_by_difference_s"
    records = {record.case.label: record for record in Run(done.folder).records()}
    assert [label for label, record in records.items() if name in record.values] == ["ddp"]
    for label in ("ddp+local2", "ddp+zero1"):
        assert "the optimizer communicates" in records[label].absent[name]


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("planted", "bugs", "check"),
    [
        ("planted_lossy", ["early", "alone", "not-finite", "ascent"], "{steps: 5}"),
        ("planted_local", ["never", "late", "partly", "scaled"], "{steps: 5, perturbed: 4, fp64: false}"),
    ],
    ids=["powersgd", "averages"],
)
def test_mistakes_that_no_design_means_are_found(planted, bugs, check, run_suite, monkeypatch):
    monkeypatch.setenv(registry.PLUGIN_PATH_VARIABLE, PLUGINS)
    done = run_suite(f"""{SUITE}
strategies: [{planted}: {{bug: [none, {", ".join(bugs)}]}}]
measure: {{trials: 0}}
check: {check}
""")
    found = done.found(planted.replace("_", "-"))
    assert found == {"none": DIFFERENT_BY_DESIGN, **dict.fromkeys(bugs, DIFFERS)}
    assert done.code == 1


@pytest.mark.train
@pytest.mark.deep
def test_verdicts_bytes_and_memory_in_every_precision_and_optimizer(run_suite):
    done = run_suite(
        SUITE
        + """
launcher: {local: {oversubscribe: true}}
axes:
  precision: [fp32, bf16]
  optimizer:
    - {clip_grad_norm: 0.5, weight_decay: 0.1, schedule: linear, total_steps: 100, warmup_steps: 2}
    - {name: sgd, momentum: 0.9, lr: 0.1}
strategies:
  - ddp: {powersgd_rank: [1, 2, 4, 8], bucket_cap_mb: 0.05}
  - ddp: {powersgd_rank: 256, min_compression_rate: 0.001}
  - ddp: {local_sgd_period: 2}
include:
  - {strategy: "ddp+0.05mb+powersgd2", world_size: 4}
measure: {warmup: 3, steps: 4, trials: 1, profile_steps: 1}
check: {steps: 5, perturbed: 4}
"""
    )
    run = RunAnalysis.read(Run(done.folder))
    assert done.code == 0, done.errors
    for row in run.cases:
        design = (
            row.representative_trial
            and row.representative_trial.described_strategy
            and row.representative_trial.described_strategy.by_design
        )
        word = row.verdicts["equivalence"].word
        assert word in ((DIFFERENT_BY_DESIGN, ROUNDING) if design else (EQUIVALENT, ROUNDING)), row.case.name
        if "powersgd256" in row.case.label:
            assert word == ROUNDING, row.case.name
        assert row.representative_trial
        moved, kept = compare_volume(row.representative_trial), largest_rank_memory(row.representative_trial)
        assert moved is None or moved.unexplained_share <= UNEXPLAINED_TOLERANCE, row.case.name
        assert kept and abs(kept.difference) <= MODEL_STATE_TOLERANCE, row.case.name
