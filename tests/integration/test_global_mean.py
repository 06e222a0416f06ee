"""Losses over unequal numbers of labels: a sum and a count, of which the mean is that of the global batch."""

import pytest

from distbench.analysis.losses.case_losses import SAME_LOSSES
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from support.theory_checks import against_theory

COUNTED = 'loss_function: "odd:sum_over_letters", count_function: "odd:letters"'
QUICK = """
batch: {global_batch_size: 8, micro_batch_size: 2}
optimizer: {clip_grad_norm: 0.1}
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0, unsynced_steps: 1}
check: {steps: 2, perturbed: 4, fp64: false}
world_sizes: [2]
"""


def of_letters(options: str) -> str:
    return f'workload: {{user: {{model: "small:Small", length: 32, {options}}}}}\ndata: text\n'


def test_a_sum_and_a_count_are_the_mean_over_the_global_batch(run_suite):
    done = run_suite(f"{of_letters(COUNTED)}{QUICK}\nstrategies: [ddp, {{zero: {{stage: 2}}}}]")
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    assert {case["verdicts"]["losses"]["word"] for case in done.cases.values()} == {SAME_LOSSES}
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")
    assert done.record("ddp")["effective"]["loss_mean"] == "over the count of the global batch"


CUT = """
workload: {answers: {dim: 16, depth: 2, heads: 2, kv_heads: 2, ffn_dim: 32, vocab_size: 64, seq_len: 16}}
data: {headless: {unequal: true}}
launcher: {kept: {oversubscribe: true}}
"""
GRID = [
    "fsdp",
    "fsdp: {version: 1}",
    "fsdp: {optimizer_in_backward: true}",
    "ddp: {sharded_optimizer: true}",
    "zero: {stage: 0}",
    "zero: {stage: 1}",
    "zero: {stage: 3}",
    "tp",
    "tp: {loss_parallel: true}",
    "cp",
    "cp: {implementation: ring, sharded: true}",
    "pp: {micro_batches: 2}",
    "zero: {stage: 1, mesh: {pp: 2}, micro_batches: 2}",
    "zero: {stage: 1, mesh: {tp: 2}}",
]


def test_ranks_that_share_rows_or_have_no_loss_count_them_once(run_suite):
    suite = QUICK.replace("[2]", "[4]").replace(", micro_batch_size: 2", "")
    meshes = "pp: {mesh: {pp: 2, dp_replicate: 2}, micro_batches: 2}}, {cp: {mesh: {cp: 2}}"
    done = run_suite(f"{CUT}{suite}\nstrategies: [{{{meshes}}}]")
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_engine_takes_the_mean_over_the_global_batch(precision, run_suite):
    strategies = ", ".join(f"{{{each}}}" if ":" in each else each for each in GRID)
    # no accumulation, which not all of them have
    whole = QUICK.replace(", micro_batch_size: 2", "").replace("optimizer: {clip_grad_norm: 0.1}", "")
    done = run_suite(f"{CUT}{whole}\nprecision: {precision}\nstrategies: [single, {strategies}]")
    assert done.code == 0, done.errors
    assert {case["status"] for case in done.cases.values()} == {"measured"}
    assert len(done.verdicts) == 1 + len(GRID)
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")


def test_a_count_that_is_not_that_of_the_labels_is_an_error_that_says_so(run_suite):
    unknown = COUNTED.partition(",")[0]
    done = run_suite(
        f"{of_letters(unknown)}{QUICK.partition('check:')[0]}\nworld_sizes: [2]\nstrategies: [ddp]"
    )
    (case,) = done.cases.values()
    assert case["status"] == "crashed"
    assert "but Workload.loss_denominator returned 64 before the forward pass" in case["reason"]
    assert "count_function" in case["reason"]
