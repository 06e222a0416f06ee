"""What DeepSpeed adds to ZeRO: hpZ's second copy, and layers cut by AutoTP."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from distbench import plan
from distbench.adopt import export_case
from distbench.analysis.mesh_dimensions import call_count_mismatches
from distbench.core.case import Batch, Case, PluginChoice
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.jobs.equivalence.arms import DIFFERS, ROUNDING
from distbench.record.run_folder import Run
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.zero import Zero
from distbench.suite import load_suite
from support import planned_suites
from support.records import case
from support.suites import SuiteText, write_suite
from support.theory_checks import assert_by_theory, assert_same_training, bytes_by_operation, measured_trials

MACHINE = Machine(
    "cpu", 8, {"torch": "9", "deepspeed": "0.19.8", "torchao": "1"}, has_libaio=False, has_compiler=True
)
SIZES = {"dim": 64, "depth": 2, "heads": 4, "kv_heads": 4, "ffn_dim": 64, "vocab_size": 256, "seq_len": 8}
OPTIONS = {**SIZES, "tied": False}
MODEL = SuiteText(
    f"{{transformer: {{{', '.join(f'{key}: {value}' for key, value in SIZES.items())}, tied: true}}}}"
)
# seven square matrices of a block
PARTITIONED = 2 * 7 * 64 * 64
# two norms of a block and the last one, embedding and head
REPLICATED = 5 * 64 + 2 * 256 * 64


def planned(folder: Path, options: str, world_size: int, **changed: str) -> plan.PlannedCase:
    """The only case of ``zero`` with *options*."""
    sections = {"workload": MODEL, "batch": "{global_batch_size: 8}", **changed}
    return planned_suites.planned(folder, f"zero: {{{options}}}", world_size, machine=MACHINE, **sections)


@pytest.mark.parametrize(
    ("strategy", "world_size", "changed", "why"),
    [
        ("stage: 2, hpz_partition_size: 2", 4, {}, "needs stage = 3, the only one that shards"),
        ("hpz_partition_size: 3", 4, {}, "3 does not divide the world size, 4; allowed: 2, 4"),
        (
            "hpz_partition_size: 2, offload_parameters: cpu, offload_optimizer: cpu",
            2,
            {},
            "hpz_partition_size = 2 is not supported with offload",
        ),
        ("mics_shard_size: 2", 4, {}, "0.19.8 does not have MiCS; 0.19.6 was the last version that had"),
        ("mics_shard_size: 3", 4, {}, "mics_shard_size = 3 does not divide the world size, 4; allowed:"),
        ("mics_shard_size: 2, hpz_partition_size: 2", 4, {}, "no engine for both; use one of them"),
        ("stage: 1, mics_shard_size: 2", 4, {}, "needs stage = 3, the only one that shards"),
        ("quantized_weights: true", 2, {}, "This op had not been implemented on CPU backend."),
        ("stage: 1, quantized_gradients: true", 2, {}, "ZeRO++ quantizes only in stage 3"),
        ("mesh: {tp: 2}", 2, {}, "which DeepSpeed documents for stages 0 to 2; use stage: 2"),
        ("stage: 1, mesh: {tp: 3}", 4, {}, "mesh: {tp: 3}: 3 does not divide the world size, 4"),
        ("stage: 1, mesh: {tp: 8}", 8, {}, "heads = 4 and kv_heads = 4 are not divisible by 8"),
        ("stage: 1, mesh: {tp: 2}, offload_optimizer: cpu", 2, {}, "tp is not supported with offload"),
        ("stage: 1, mesh: {tp: 2}", 2, {"workload": "{mlp: {}}"}, "does not declare which linear layers"),
        ("stage: 1, mesh: {tp: 2}", 2, {"compile": "true"}, "compile is not supported with tensor parallel"),
        ("stage: 1, mesh: {tp: 2}", 2, {"optimizer": "muon"}, "muon"),
        (
            "stage: 0, mesh: {tp: 2}",
            2,
            {"precision": "bf16", "optimizer": "{clip_grad_norm: 1.0}"},
            "would clip by the norm of one rank's gradients, not of all tensor-parallel ranks'",
        ),
        ("stage: 2, mesh: {pp: 2}", 2, {}, "mesh: pp with stage = 2: DeepSpeed's pipeline accumulates"),
        ("mesh: {pp: 2}", 2, {}, "use stage: 1, or pp: {mesh: {dp_shard: 2}}"),
        ("stage: 1, mesh: {pp: 2, tp: 2}", 4, {}, "pp and tp can't be combined with DeepSpeed"),
        ("stage: 1, mesh: {pp: 2}, offload_optimizer: cpu", 2, {}, "pp is not supported with offload"),
        ("stage: 1, mesh: {pp: 2}, overlap_comm: true", 2, {}, "reduces gradients after all backward passes"),
        ("stage: 1, mesh: {pp: 2}, optimizer_kernel: deepspeed", 2, {}, "with optimizer_kernel: torch"),
        ("stage: 1, mesh: {pp: 3}", 4, {}, "mesh: {pp: 3}: 3 does not divide the world size, 4"),
        ("stage: 1, mesh: {pp: 4}", 4, {}, "2 layers can't be split into 4 stages; use at most pp: 2"),
        (
            "stage: 1, mesh: {pp: 2}, micro_batches: 3",
            2,
            {},
            "micro_batches = 3 does not divide batch.micro_batch_size = 8; nearest divisors: 1, 2, 4",
        ),
        (
            "stage: 1, mesh: {pp: 2}",
            2,
            {"batch": "{global_batch_size: 8, gradient_accumulation_steps: 2}"},
            "steps: 1, and micro_batches that divide 8 samples: 2, 4, 8",
        ),
        ("hpz_partition_size: 2, offload_parameters: cpu", 4, {}, "use offload_parameters: none"),
        (
            "stage: 0, mesh: {pp: 2}",
            1,
            {"optimizer": "{clip_grad_norm: 1.0}"},
            "2 does not divide the world size, 1; dp_replicate gets the rest",
        ),
        ("stage: 1, micro_batches: 8", 2, {}, "only a pipeline splits micro-batches"),
        ("stage: 1, mesh: {pp: 2}", 2, {"compile": "true"}, "compile is not supported with pipeline"),
        (
            "stage: 1, mesh: {pp: 2}",
            2,
            {"workload": "{user: {model: 'models.small:Small', length: 32}}"},
            "workload.user has no pp_plan, which declares its layers in execution order",
        ),
        ("stage: 0, mesh: {pp: 2}", 2, {"precision": "bf16"}, "BF16_Optimizer, which shards the optimizer"),
        (
            "stage: 0, mesh: {pp: 2}",
            2,
            {"optimizer": "{clip_grad_norm: 1.0}"},
            "would clip by the norm of the first stage's gradients",
        ),
        ("stage: 1, mesh: {pp: 2}", 2, {"optimizer": "muon"}, "muon"),
    ],
)
def test_what_deepspeed_can_not_do_is_refused_with_the_numbers(strategy, world_size, changed, why, tmp_path):
    assert why in (planned(tmp_path, strategy, world_size, **changed).problem or "")


def test_a_mesh_of_one_is_none_and_auto_is_every_mesh_that_fits(tmp_path):
    assert Zero(stage=1, mesh={"tp": 1}) == Zero(stage=1)
    suite = write_suite(
        tmp_path,
        f"workload: {MODEL}\nbatch: {{global_batch_size: 8}}\nworld_sizes: [2, 8]\n"
        "strategies: [{zero: {stage: 1, mesh: auto}}]\n",
    )
    found = [
        (item.case.world_size, item.case.label) for item in plan.make_plan(load_suite(suite), MACHINE).cases
    ]
    # four heads can't be divided by 8, nor two layers by 4
    of_2, of_8 = ["zero1", "zero1+tp2", "zero1+pp2"], ["zero1", "zero1+tp2", "zero1+tp4"]
    assert found == [*((2, name) for name in of_2), *((8, name) for name in of_8)]


def test_short_numbers_are_no_obstacle_where_nothing_is_clipped(tmp_path):
    unclipped = {"precision": "bf16", "optimizer": "{clip_grad_norm: null}"}
    assert planned(tmp_path, "stage: 0, mesh: {tp: 2}", 2, **unclipped).problem is None


def test_an_odd_vocabulary_is_no_obstacle_to_layers_that_leave_it_whole(tmp_path):
    odd = {"workload": MODEL.replace("vocab_size: 256", "vocab_size: 257")}
    assert planned(tmp_path, "stage: 1, mesh: {tp: 2}", 2, **odd).problem is None


def test_names_say_what_is_kept_twice_and_what_is_cut(tmp_path):
    assert planned(tmp_path, "hpz_partition_size: 2", 4).case.label == "zero3+hpz2"
    cut = planned(tmp_path, "stage: 1, mesh: {tp: 2}", 4).case
    assert cut.label == "zero1+tp2"
    # pairs of ranks share rows
    assert cut.batch == Batch(8, 4, 1)
    staged = planned(tmp_path, "stage: 1, mesh: {pp: 2}", 4).case
    assert (staged.label, staged.batch) == ("zero1+pp2", Batch(8, 4, 1))


def test_neighbours_share_a_stage_and_not_their_rows():
    assert [Zero(stage=1, mesh={"pp": 2}).data_parallel_rank(rank, 4) for rank in range(4)] == [0, 1, 0, 1]
    assert [Zero(stage=1, mesh={"tp": 2}).data_parallel_rank(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert list(Zero(stage=1, mesh={"pp": 2}).mesh_sizes(4).items()) == [("pp", 2), ("dp_shard", 2)]


def zero_case(strategy: Zero, world_size: int, **changed: Any) -> Case:
    """A case of *strategy* on the small model, in fp32."""
    ranks = strategy.data_parallel_size(world_size)
    given = {"batch": Batch(8, 8 // ranks, 1), "workload": PluginChoice("transformer", OPTIONS), **changed}
    return case("zero", world_size, strategy=PluginChoice("zero", dataclasses.asdict(strategy)), **given)


def test_a_second_copy_is_kept_by_a_group_and_gathers_no_more_than_stage_3_does():
    plain, copied = Zero(stage=3), Zero(stage=3, hpz_partition_size=2)
    asked = zero_case(copied, 4)
    assert bytes_by_operation(copied, asked, 1000) == bytes_by_operation(plain, asked, 1000)
    states = plain.model_states(asked, 1000)
    assert copied.model_states(asked, 1000) == {**states, "parameters": 1000.0 + 2000.0}


@pytest.mark.parametrize(("version", "can"), [("0.16.9", True), ("0.19.6", True), ("0.19.7", False)])
def test_mics_is_planned_where_deepspeed_can_train_so(version, can, tmp_path):
    there = dataclasses.replace(MACHINE, packages={**MACHINE.packages, "deepspeed": version})
    sections = {"workload": MODEL, "batch": "{global_batch_size: 8}"}
    found = planned_suites.planned(tmp_path, "zero: {mics_shard_size: 2}", 4, machine=there, **sections)
    assert (found.problem is None, found.case.label) == (can, "zero3+mics2")


def test_groups_of_mics_shard_as_their_ranks_would_and_reduce_shards_between_them():
    grouped = Zero(stage=3, mics_shard_size=2)
    asked = zero_case(grouped, 4)
    assert grouped.model_states(asked, 1000) == Zero(stage=3).model_states(zero_case(Zero(stage=3), 2), 1000)
    moved = [(each.op, each.bytes, each.dimension) for each in grouped.traffic(asked, 1000)]
    assert moved == [
        ("all_gather", 8000.0, "dp_shard"),
        ("reduce_scatter", 4000.0, "dp_shard"),
        ("all_reduce", 2000.0, "dp_replicate"),
    ]
    # one group has nobody to reduce with
    assert "all_reduce" not in bytes_by_operation(grouped, zero_case(grouped, 2), 1000)


@pytest.mark.parametrize(
    ("recomputed", "sums"),
    # query, key, value, gate and up backward, out and down forward; one of those again where recomputed
    [("none", 7), ("full", 8)],
)
def test_deepspeed_sums_the_gradient_of_every_layer_that_shares_an_input(recomputed, sums):
    strategy, activation = Zero(stage=1, mesh={"tp": 2}), 8 * 8 * 64 * 4
    alone = zero_case(strategy, 2, activation_checkpointing=recomputed)
    (moved,) = strategy.traffic(alone, PARTITIONED + REPLICATED)
    assert moved == ExpectedCollective("all_reduce", 2 * sums * activation, "tp", 2 * sums)
    own = 4 * (REPLICATED + PARTITIONED // 2)
    pairs = zero_case(strategy, 4, activation_checkpointing=recomputed)
    assert bytes_by_operation(strategy, pairs, PARTITIONED + REPLICATED) == {
        "all_reduce": 2 * sums * activation / 2,
        "reduce_scatter": own,
        "all_gather": own,
    }


@pytest.mark.parametrize(("tied", "whole"), [(False, REPLICATED), (True, REPLICATED - 256 * 64)])
def test_embedding_norms_and_head_stay_whole_on_every_rank(tied, whole):
    strategy = Zero(stage=0, mesh={"tp": 2})
    asked = zero_case(strategy, 2, workload=PluginChoice("transformer", {**OPTIONS, "tied": tied}))
    assert strategy.model_states(asked, PARTITIONED + whole)["parameters"] == 4 * (whole + PARTITIONED / 2)


@pytest.mark.parametrize("tied", [False, True])
def test_activations_cross_borders_and_stages_move_and_keep_what_they_have(tied):
    strategy, activation = Zero(stage=1, mesh={"pp": 2}), 8 * 8 * 64 * 4
    options = {"workload": PluginChoice("transformer", {**OPTIONS, "tied": tied})}
    crossing = [ExpectedCollective(op, activation, "pp", 4) for op in ("send", "recv")]
    both_ends = [ExpectedCollective("all_reduce", 256 * 64 * 4, "pp", 1)] if tied else []
    assert strategy.traffic(zero_case(strategy, 2, **options), 0) == [*crossing, *both_ends]
    # of half of the rows, in each pair half of the model
    pairs = bytes_by_operation(strategy, zero_case(strategy, 4, **options), 0)
    assert pairs["send"] == activation / 2
    assert pairs["all_gather"] == pairs["reduce_scatter"] == 4 * (PARTITIONED + REPLICATED) / 2
    # the last stage has norm and head, its own copy of what is tied
    most = PARTITIONED / 2 + 3 * 64 + 256 * 64
    states = strategy.model_states(zero_case(strategy, 4, **options), 0)
    assert (states["parameters"], states["optimizer_state"]) == (4 * most, 8 * most / 2)


def test_a_layer_is_found_by_its_name():
    strategy = Zero(stage=1, mesh={"tp": 2})
    section = strategy.tensor_parallelism.configuration(zero_case(strategy, 2))
    (columns, rows) = section["partition_config"]["layer_specs"]
    assert (columns["partition_type"], rows["partition_type"]) == ("column", "row")
    assert any(re.match(each, "blocks.1.attention.wq.weight") for each in columns["patterns"])
    assert not any(re.match(each, "blocks.1.attention.wo.weight") for each in columns["patterns"])


def test_no_format_hands_a_model_to_the_pipeline_module():
    with pytest.raises(UsageError, match="no format supports DeepSpeed's PipelineModule yet"):
        export_case("deepspeed", zero_case(Zero(stage=1, mesh={"pp": 2}), 2), {})


def test_no_format_makes_a_model_for_mics():
    with pytest.raises(UsageError, match="MiCS_Init, which no format can express"):
        export_case("deepspeed", zero_case(Zero(mics_shard_size=2), 2), {})


# of many layers, so that the gradient of a matrix that lies in two partitions is less than 1 % of all
CHECK_SUITE = f"""
workload: {MODEL.replace("depth: 2", "depth: 8")}
launcher: {{kept: {{oversubscribe: true}}}}
"""


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("precision", "recomputed", "clip", "strategies"),
    [
        ("fp32", "none", "0.1", ("{hpz_partition_size: 2}", "{stage: [0, 1, 2], mesh: {tp: 2}}")),
        ("bf16", "full", "0.1", ("{hpz_partition_size: 2}", "{stage: [1, 2], mesh: {tp: 2}}")),
        ("bf16", "none", "null", ("{stage: 0, mesh: {tp: 2}}",)),
    ],
)
def test_they_move_and_keep_what_theory_says_and_resume(precision, recomputed, clip, strategies, run_suite):
    # each is checked with AdamW and with SGD
    done = run_suite(f"""{CHECK_SUITE}
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
precision: {precision}
activation_checkpointing: {recomputed}
optimizer: {{clip_grad_norm: {clip}, weight_decay: 0.1}}
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4}}
checkpoint: {{}}
world_sizes: [2, 4]
strategies: [{", ".join(f"{{zero: {each}}}" for each in strategies)}]
""")
    assert_same_training(done)
    assert [record for record in Run(done.folder).records() if call_count_mismatches(record)] == []
    for record in measured_trials(done.folder):
        assert_by_theory(record)


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("precision", "recomputed", "clip", "strategy", "world_sizes"),
    [
        ("fp32", "none", "0.1", "stage: 1, mesh: {pp: 2}", [2, 4]),
        ("fp32", "none", "0.1", "stage: 1, mesh: {pp: 4}, micro_batches: 2", [4]),
        ("fp32", "none", "null", "stage: 0, mesh: {pp: 2}", [2, 4]),
        ("bf16", "full", "0.1", "stage: 1, mesh: {pp: 2}", [2, 4]),
    ],
)
def test_a_pipeline_moves_and_keeps_what_theory_says_and_resumes(
    precision, recomputed, clip, strategy, world_sizes, run_suite
):
    # each is checked with AdamW and with SGD
    done = run_suite(f"""{CHECK_SUITE}
batch: {{global_batch_size: 16}}
precision: {precision}
activation_checkpointing: {recomputed}
optimizer: {{clip_grad_norm: {clip}, weight_decay: 0.1}}
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4, fp32: false, fp64: false}}
checkpoint: {{}}
world_sizes: {world_sizes}
strategies: [{{zero: {{{strategy}}}}}]
""")
    assert_same_training(done)
    assert [record for record in Run(done.folder).records() if call_count_mismatches(record)] == []
    for record in measured_trials(done.folder):
        assert_by_theory(record)
        assert record.effective["in_flight"] == record.effective["in_flight_theory"]
        assert "bubble" in record.values, record.absent


@pytest.mark.train
@pytest.mark.deep
def test_mistakes_of_a_pipeline_are_found_and_so_is_what_deepspeed_clips_by(run_suite):
    done = run_suite(f"""
workload: {MODEL}
batch: {{global_batch_size: 8}}
launcher: kept
optimizer: {{name: sgd, lr: 0.1, clip_grad_norm: 0.1}}
measure: {{trials: 0}}
check: {{steps: 3, perturbed: 4, fp32: false, fp64: false}}
world_sizes: [2]
strategies:
  - planted_stages: {{stage: 1, mesh: {{pp: 2}}, bug: [none, local-clipping, untied]}}
  - planted_stages: {{stage: 0, mesh: {{pp: 2}}, bug: first-stage-clipping}}
""")
    bugs = ("local-clipping", "untied", "first-stage-clipping")
    assert done.found("planted-stages") == {"none": ROUNDING, **dict.fromkeys(bugs, DIFFERS)}
