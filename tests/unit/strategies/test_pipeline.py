"""Pipelines: what can be cut and scheduled, what they should move and keep, and if they train the same."""

import dataclasses
from pathlib import Path

import pytest

from distbench.adopt import export_case
from distbench.cli.plan_output import runtime_caveats
from distbench.core.case import Batch, Case, PluginChoice
from distbench.core.errors import UsageError
from distbench.jobs.equivalence.arms import DIFFERS, ROUNDING
from distbench.plan import make_plan
from distbench.plan.planner import PlannedCase
from distbench.record.run_folder import Run
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.cuts import split_layers
from distbench.strategies.pp.schedules import SCHEDULES, schedule_bubble
from distbench.suite import Overrides, load_suite
from distbench.workloads.stages import PipelineStages
from support import planned_suites
from support.records import case
from support.releases import needs_release
from support.suites import SuiteText
from support.theory_checks import against_theory, assert_same_training, bytes_by_operation

OPTIONS = {"dim": 32, "depth": 4, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "vocab_size": 256, "seq_len": 16}
MODEL = SuiteText(f"{{transformer: {{{', '.join(f'{key}: {value}' for key, value in OPTIONS.items())}}}}}")
TABLE = 256 * 32
# two projections of the width and two of one of the two heads, three of SwiGLU, two norms
BLOCK = 32 * (2 * 32 + 2 * 16) + 3 * 32 * 64 + 2 * 32
ACTIVATIONS = 8 * 16 * 32 * 4
"""Bytes between two layers, of 8 samples in fp32."""


HEADS = {"workload": MODEL.replace("kv_heads: 1", "kv_heads: 2")}
"""A model that can be cut in two inside its layers."""


def refusal_reason(folder: Path, options: str, world_size: int, **changed: str) -> str:
    """Why the only case of a pipeline with *options* can't run; empty if it can."""
    return planned(folder, options, world_size, **changed).problem or ""


def planned(folder: Path, options: str, world_size: int, **changed: str) -> PlannedCase:
    """The only case of a pipeline with *options*."""
    sections = {"workload": MODEL, "batch": "{global_batch_size: 8}", **changed}
    return planned_suites.planned(folder, f"pp: {{{options}}}", world_size, **sections)


@pytest.mark.parametrize(
    ("strategy", "world_size", "changed", "why"),
    [
        ("", 1, {}, "a pipeline needs at least 2 ranks"),
        (
            "",
            8,
            {"batch": "{global_batch_size: 16}"},
            "4 layers can't be split into 8 stages (8 ranks x 1 per rank)",
        ),
        ("", 8, {}, "use a world size of at most 4, or a model of at least 8 layers"),
        ("mesh: {pp: 8}", 8, {}, "use at most pp: 4, or a model of at least 8 layers"),
        ("schedule: ZBVZeroBubble", 4, {}, "use a world size of at most 2, or a model of at least 8 layers"),
        ("schedule: ZBVZeroBubble, mesh: {dp_shard: 2}", 8, {}, "use a world size of at most 4, or"),
        ("stages_per_rank: 2", 2, {}, "stages_per_rank = 2, but the schedule 1F1B needs exactly 1"),
        ("schedule: LoopedBFS, stages_per_rank: 1", 2, {}, "the schedule LoopedBFS needs at least 2"),
        ("schedule: DualPipeV, stages_per_rank: 3", 2, {}, "the schedule DualPipeV needs exactly 2"),
        ("micro_batches: 3", 2, {}, "3: it does not divide batch.micro_batch_size = 8"),
        ("micro_batches: 3", 2, {}, "nearest values that fit a micro-batch of 8 samples: 2, 4, 8"),
        ("micro_batches: 2", 4, {}, "1F1B needs at least as many micro-batches as stages (4)"),
        ("schedule: DualPipeV, micro_batches: 2", 2, {}, "as many micro-batches as stages (4)"),
        (
            "schedule: Interleaved1F1B, micro_batches: 5",
            2,
            {"batch": "{global_batch_size: 10}"},
            "Interleaved1F1B sends micro-batches through 2 ranks in 2 rounds of equal size",
        ),
        ("", 2, {"batch": "{global_batch_size: 1}"}, "use micro_batches: 2 and batch.micro_batch_size: 2 or"),
        (
            "",
            2,
            {"workload": "{user: {model: 'models.small:Small', length: 32}}"},
            "workload.user has no pp_plan, which declares its layers in execution order",
        ),
        (
            "schedule: ZBVZeroBubble",
            2,
            {"activation_checkpointing": "full"},
            "one by one, and torch recomputes a layer for each of them; use activation_checkpointing",
        ),
        (
            "schedule: DualPipeV",
            2,
            {"activation_checkpointing": "selective"},
            "checkpointed layer; use activation_checkpointing: none, or the schedule 1F1B, GPipe",
        ),
        ("", 2, {"compile": "true"}, "compile is not supported with pipeline parallelism"),
        ("mesh: {dp_shard: 3}", 4, {}, "mesh: {dp_shard: 3}: 3 does not divide the world size, 4"),
        ("mesh: {pp: 2, dp_shard: 4}", 4, {}, "2 x 4 = 8 is not the world size, 4; omit pp"),
        (
            "mesh: {dp_shard: 2}",
            2,
            {},
            "at least 2 ranks in addition to mesh: {dp_shard: 2}; use a world size of at least 4",
        ),
        ("mesh: {tp: 4}", 8, {}, "tensor parallelism over 4 devices: heads = 2 and kv_heads = 1 are"),
        ("sequence_parallel: true", 2, {}, "sequence_parallel needs tensor parallelism; set mesh: {tp: 2}"),
        ("loss_parallel: true", 2, {}, "loss_parallel needs tensor parallelism; set mesh: {tp: 2}"),
        ("reshard_after_forward: true", 2, {}, "needs sharded stages; set mesh: {dp_shard: 2}"),
        ("mesh: {dp_replicate: 2, tp: 1}, schedule: ZBVZeroBubble", 4, {}, "use dp_shard instead of dp_rep"),
        ("mesh: {dp_replicate: 2, tp: 2}", 8, HEADS, "DDP does not support tensor-parallel layers; use dp"),
        (
            "mesh: {dp_replicate: 2}",
            4,
            {"precision": "{compute: bf16, reduce: bf16}"},
            "precision.reduce = bf16 and precision.master = fp32",
        ),
    ],
)
def test_what_can_not_be_cut_or_scheduled_is_refused_with_the_numbers(
    strategy, world_size, changed, why, tmp_path
):
    assert why in refusal_reason(tmp_path, strategy, world_size, **changed)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if SCHEDULES[name].splits_backward])
def test_shards_are_not_freed_between_the_halves_of_a_backward_pass(schedule, tmp_path):
    """torch loses the gradients of weights then, without an error: see the planted one."""
    asked = f"schedule: {schedule}, mesh: {{dp_shard: 2}}, micro_batches: 4"
    assert refusal_reason(tmp_path, asked, 4) == ""
    refused = refusal_reason(tmp_path, f"{asked}, reshard_after_forward: true", 4)
    assert f"the schedule {schedule}: weight gradients are computed after their layer" in refused
    assert "use reshard_after_forward: false, or the schedule 1F1B" in refused


@pytest.mark.parametrize(
    ("asked", "world_size", "label"),
    [
        ("mesh: {dp_replicate: 2}", 4, "pp+ddp2"),
        ("mesh: {pp: 2, dp_shard: 2}", 4, "pp+fsdp2"),
        ("mesh: {dp_replicate: 2, dp_shard: 2}", 8, "pp+hsdp2x2"),
        ("mesh: {tp: 2}, sequence_parallel: true", 4, "pp+tp2+sp"),
        ("mesh: {tp: 2}, loss_parallel: true", 4, "pp+tp2+lp"),
        ("mesh: {dp_shard: 2}, reshard_after_forward: true, schedule: GPipe", 4, "pp-gpipe+fsdp2+reshard"),
        ("mesh: {dp_shard: 2, tp: 2}", 8, "pp+fsdp2+tp2"),
        ("mesh: {dp_shard: 1}", 2, "pp"),
    ],
)
def test_a_name_says_what_is_inside_each_place(asked, world_size, label, tmp_path):
    item = planned(tmp_path, asked, world_size, **HEADS, batch="{global_batch_size: 16}")
    assert (item.problem, item.case.label) == (None, label)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_can_be_asked_for_by_its_name_alone(schedule, tmp_path):
    assert refusal_reason(tmp_path, f"schedule: {schedule}", 2) == ""


def test_layers_are_cut_by_count_or_so_that_the_largest_stage_is_smallest():
    model = PipelineStages(
        layer_parameters=(10, 10, 10, 10, 10, 10, 10),
        embedding_parameters=20,
        head_parameters=35,
        activation_shape=(1,),
        input_array="x",
    )
    assert [len(layers) for layers in split_layers(model, 3, "count")] == [3, 2, 2]
    by_parameters = split_layers(model, 3, "parameters")
    assert [len(layers) for layers in by_parameters] == [2, 4, 1]
    assert [model.parameters(layers) for layers in by_parameters] == [40, 40, 45]
    assert [len(layers) for layers in split_layers(model, 7, "parameters")] == [1] * 7
    by_time = split_layers(model, 3, "time", [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.5])
    assert [len(layers) for layers in by_time] == [1, 5, 1]


def test_what_depends_on_a_cut_by_time_is_known_when_there_is_one(tmp_path):
    strategy, by_count = (
        PipelineParallel(split="time", mesh={"dp_shard": 2}),
        PipelineParallel(mesh={"dp_shard": 2}),
    )
    asked = pipeline_case(strategy, 4)
    assert bytes_by_operation(strategy, asked, 0) == bytes_by_operation(by_count, asked, 0)
    assert strategy.model_states(asked, 0) is None
    built = strategy.model_states_as_built(asked, 0, {"layers_of_stages": [1, 3]}) or {}
    assert built["optimizer_state"] == (3 * BLOCK + TABLE + 32) / 2 * 8
    assert "layers_of_stages" not in strategy.required_settings(asked)
    assert planned(tmp_path, "split: time", 2).problem is None


def test_a_plan_says_once_that_layers_are_timed_later(tmp_path):
    planned(tmp_path, "split: time", 2)
    loaded = load_suite(tmp_path / "suite.yaml", Overrides(world_sizes=[2, 4]))
    told = [
        text
        for text in runtime_caveats(loaded, make_plan(loaded, planned_suites.MACHINE))
        if text.startswith("pp: ")
    ]
    assert len(told) == 1
    assert "split: time assigns layers to stages after timing them at the start of the run" in told[0]


def pipeline_case(strategy: PipelineParallel, world_size: int, *, tied: bool = True) -> Case:
    """A case of *strategy* on the small model, in fp32."""
    options = dataclasses.asdict(strategy)
    workload = PluginChoice("transformer", {**OPTIONS, "tied": tied})
    return case(
        "pp", world_size, strategy=PluginChoice("pp", options), workload=workload, batch=Batch(8, 8, 1)
    )


@pytest.mark.parametrize(
    ("schedule", "world_size", "borders"),
    [
        ("1F1B", 2, 1),
        ("GPipe", 4, 3),
        ("Interleaved1F1B", 2, 3),
        # the two stages at the point of the V are on one rank
        ("ZBVZeroBubble", 2, 2),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_activations_and_gradients_cross_every_border_between_ranks(schedule, world_size, borders, tied):
    strategy = PipelineParallel(schedule=schedule)
    moved = 2 * borders * ACTIVATIONS / world_size
    both_ends = {"all_reduce": 2 * TABLE * 4 / world_size} if tied and schedule != "ZBVZeroBubble" else {}
    asked = pipeline_case(strategy, world_size, tied=tied)
    assert bytes_by_operation(strategy, asked, 0) == {"send": moved, "recv": moved, **both_ends}


@pytest.mark.parametrize(
    ("strategy", "parameters"),
    [
        # the last stage has norm and head
        (PipelineParallel(), 2 * BLOCK + TABLE + 32),
        (PipelineParallel(schedule="Interleaved1F1B"), 2 * BLOCK + TABLE + 32),
        # the first rank has both ends
        (PipelineParallel(schedule="ZBVZeroBubble"), 2 * BLOCK + 2 * TABLE + 32),
    ],
)
def test_the_largest_rank_keeps_the_states_of_its_stages(strategy, parameters):
    states = strategy.model_states(pipeline_case(strategy, 2), 0)
    assert states["parameters"] == states["gradients"] == parameters * 4
    assert states["optimizer_state"] == parameters * 8


UNTIED_PARAMETERS = 4 * BLOCK + 2 * TABLE + 32


@pytest.mark.parametrize(
    ("mesh", "world_size", "options", "expected"),
    [
        # of half of the rows, over a border that every second rank has
        ({"dp_replicate": 2}, 4, {}, {"send": ACTIVATIONS / 2, "all_reduce": UNTIED_PARAMETERS / 2 * 4}),
        (
            {"dp_shard": 2},
            4,
            {},
            {
                "send": ACTIVATIONS / 2,
                "all_gather": UNTIED_PARAMETERS / 2 * 4,
                "reduce_scatter": UNTIED_PARAMETERS / 2 * 4,
            },
        ),
        # layers once, and again for each of four micro-batches
        (
            {"dp_shard": 2},
            4,
            {"reshard_after_forward": True},
            {
                "send": ACTIVATIONS / 2,
                "all_gather": (UNTIED_PARAMETERS + 4 * 4 * BLOCK) / 2 * 4,
                "reduce_scatter": UNTIED_PARAMETERS / 2 * 4,
            },
        ),
        # shards of a gradient are reduced over copies
        (
            {"dp_replicate": 2, "dp_shard": 2},
            8,
            {},
            {
                "send": ACTIVATIONS / 4,
                "all_gather": UNTIED_PARAMETERS / 2 * 4,
                "reduce_scatter": UNTIED_PARAMETERS / 2 * 4,
                "all_reduce": UNTIED_PARAMETERS / 2 * 4 / 2,
            },
        ),
        # 4 L + 2 reductions of activations and the logits (Megatron-LM), of which every second rank has half
        (
            {"tp": 2},
            4,
            {},
            {"send": ACTIVATIONS, "all_reduce": 18 * ACTIVATIONS / 2, "all_gather": 8 * 16 * 256 * 4 / 2},
        ),
        # in place of the logits three numbers of each position
        (
            {"tp": 2},
            4,
            {"loss_parallel": True},
            {"send": ACTIVATIONS, "all_reduce": (18 * ACTIVATIONS + 3 * 8 * 16 * 4) / 2},
        ),
    ],
)
def test_every_dimension_of_a_mesh_moves_its_own(mesh, world_size, options, expected):
    strategy = PipelineParallel(mesh=mesh, **options)
    moved = bytes_by_operation(strategy, pipeline_case(strategy, world_size, tied=False), 0)
    assert moved == expected | {"recv": expected["send"]}


def test_sequence_parallelism_sends_parts_of_rows_and_shards_divide_what_is_tied():
    strategy = PipelineParallel(mesh={"dp_shard": 2, "tp": 2}, sequence_parallel=True)
    moved = bytes_by_operation(strategy, pipeline_case(strategy, 8), 0) or {}
    assert moved["send"] == moved["recv"] == ACTIVATIONS / 2 / 2
    # norms whole, for FSDP sums what is left of their gradients; the copies at both ends a quarter each
    assert moved["all_reduce"] == (9 * 32 * 4) / 2 + 2 * TABLE * 4 / 4 / 2


@pytest.mark.parametrize(
    ("mesh", "kept"),
    [({"dp_replicate": 2}, 2 * BLOCK + TABLE + 32), ({"dp_shard": 2}, BLOCK + TABLE / 2 + 16)],
)
def test_a_mesh_keeps_copies_or_shards_of_the_largest_stage(mesh, kept):
    strategy = PipelineParallel(mesh=mesh)
    states = strategy.model_states(pipeline_case(strategy, 4), 0) or {}
    assert states["parameters"] == kept * 4
    assert states["optimizer_state"] == kept * 8
    # whole until they are reduced
    assert states["gradients"] == (2 * BLOCK + TABLE + 32) * 4


def test_gradients_of_a_stage_that_goes_back_before_the_next_are_reduced_before_that():
    strategy = PipelineParallel(schedule="LoopedBFS", mesh={"dp_shard": 2})
    asked = pipeline_case(strategy, 4)
    # of rank 0 the stage with the embedding comes last, of rank 1 that with norm and head comes first
    first, last = BLOCK + TABLE, BLOCK + TABLE + 32
    once = strategy.model_states(asked, 0) or {}
    assert once["gradients"] == (first + BLOCK / 2) * 4
    again = strategy.model_states(dataclasses.replace(asked, batch=Batch(16, 4, 2)), 0) or {}
    assert again["gradients"] == (last + (last + BLOCK) / 2) * 4


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "InterleavedZeroBubble"])
def test_in_one_round_of_micro_batches_stages_go_back_one_after_another(schedule):
    def kept(micro_batches: int) -> float:
        strategy = PipelineParallel(schedule=schedule, mesh={"dp_shard": 2}, micro_batches=micro_batches)
        return (strategy.model_states(pipeline_case(strategy, 4), 0) or {})["gradients"]

    assert kept(2) == (BLOCK + TABLE + BLOCK / 2) * 4
    assert kept(4) == (2 * BLOCK + TABLE + 32) * 4


def test_layers_that_are_cut_keep_norms_whole():
    strategy = PipelineParallel(mesh={"tp": 2})
    states = strategy.model_states(pipeline_case(strategy, 4), 0) or {}
    stage = 2 * BLOCK + TABLE + 32
    # one norm of nine is that of the head, which theory spreads over all layers
    norms = 9 * 32 * 2 / 4
    assert states["parameters"] == round(norms + (stage - norms) / 2) * 4


def test_the_share_of_waiting_is_known_where_a_backward_pass_is_one():
    assert schedule_bubble("GPipe", 4, 8, 1) == schedule_bubble("1F1B", 4, 8, 1) == 3 / 11
    assert schedule_bubble("Interleaved1F1B", 4, 8, 2) == schedule_bubble("LoopedBFS", 4, 8, 2) == 3 / 19
    assert schedule_bubble("1F1B", 1, 8, 1) == 0
    assert schedule_bubble("ZBVZeroBubble", 4, 8, 2) is None


def test_what_only_a_script_says_of_a_pipeline_is_refused_with_that_advice():
    with pytest.raises(UsageError, match="split a model into pipeline stages; for this case use --as torch"):
        export_case("accelerate", pipeline_case(PipelineParallel(), 2), {})


CHECK_SUITE = f"""
workload: {MODEL.replace("}}", ", tied: true}}")}
batch: {{global_batch_size: 8, micro_batch_size: 4}}
launcher: kept
measure: {{trials: 0}}
world_sizes: [2]
"""


@pytest.mark.train
@needs_release("torch", "2.10")
def test_mistakes_of_a_pipeline_are_found(run_suite):
    bugs = ("unscaled", "scaled-by-torch", "untied", "local-clipping")
    done = run_suite(f"""{CHECK_SUITE}
optimizer: {{name: sgd, lr: 0.1, clip_grad_norm: 0.1}}
check: {{steps: 3, perturbed: 4, fp64: false}}
strategies: [{{planted_pp: {{bug: [none, {", ".join(bugs)}]}}}}]
""")
    found = done.found("planted-pp")
    assert found == {"none": ROUNDING, **dict.fromkeys(bugs, DIFFERS)}


@pytest.mark.train
@needs_release("torch", "2.10")
def test_layers_that_take_longer_are_fewer_in_a_stage_that_is_cut_by_time(run_suite):
    done = run_suite("""
workload: {drowsy: {depth: 4, seconds: 0.0002, slower: 100}}
batch: {global_batch_size: 8}
launcher: kept
measure: {warmup: 1, steps: 1, trials: 2}
world_sizes: [2]
strategies: [{pp: {split: time, micro_batches: 2}}]
""")
    assert done.code == 0, done.errors
    first, second = Run(done.folder).records()
    assert first.effective["layers_of_stages"] == [1, 3]
    timed = first.effective["layer_ms"]
    # three naps of 20 ms
    assert len(timed) == 4
    assert timed[0] == max(timed) >= 60
    # timed once for all trials
    assert second.effective["layer_ms"] == timed
    # three layers and the classifier, with AdamW
    assert first.values["memory_states_theory"] == 16 * (3 * 2 * 64 + 65 * 10)


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("work", "precision", "recomputed", "world_sizes"),
    [
        (MODEL.replace("depth: 4", "depth: 8, tied: true"), "fp32", "none", [2, 4]),
        (MODEL.replace("depth: 4", "depth: 8, tied: true"), "bf16", "none", [4]),
        (MODEL.replace("depth: 4", "depth: 8, tied: true"), "bf16", "full", [4]),
        ("{mlp: {hidden: 64, depth: 4}}", "fp32", "none", [2]),
    ],
)
def test_every_schedule_is_the_same_training_and_moves_and_keeps_what_theory_says(
    work, precision, recomputed, world_sizes, run_suite
):
    names = [name for name, each in SCHEDULES.items() if recomputed == "none" or not each.splits_backward]
    done = run_suite(f"""
workload: {work}
precision: {precision}
activation_checkpointing: {recomputed}
batch: {{global_batch_size: 16, micro_batch_size: 8}}
launcher: {{kept: {{oversubscribe: true}}}}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4, fp32: false, fp64: false}}
world_sizes: {world_sizes}
strategies:
  - pp: {{schedule: [{", ".join(names)}], micro_batches: 8, split: parameters}}
  - pp: {{schedule: [1F1B, Interleaved1F1B], micro_batches: 8, split: time}}
""")
    assert_same_training(done)
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")


WIDE = HEADS["workload"].replace("depth: 4", "depth: 4, tied: true")
MESHES = SuiteText(f"""
workload: {WIDE}
batch: {{global_batch_size: 16, micro_batch_size: 4}}
launcher: {{kept: {{oversubscribe: true}}}}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
check: {{steps: 3, perturbed: 4, fp32: false, fp64: false}}
""")


@pytest.mark.train
@needs_release("torch", "2.10")
def test_a_pipeline_of_shards_is_the_same_training(run_suite):
    # one optimizer and few steps: the grid has both
    short = MESHES.replace("steps: 3", "steps: 2").replace(
        "{clip", "{name: sgd, kernel: foreach, lr: 0.1, clip"
    )
    done = run_suite(f"""{short}
measure: {{trials: 0}}
world_sizes: [4]
strategies: [{{pp: {{mesh: {{dp_shard: 2}}, micro_batches: 2}}}}]
""")
    assert done.code == 0, done.errors
    assert list(done.verdicts.values()) == [ROUNDING]


@pytest.mark.train
@pytest.mark.deep
def test_shards_that_are_freed_between_the_halves_of_a_backward_pass_are_found(run_suite):
    done = run_suite(f"""{MESHES}
measure: {{trials: 0}}
world_sizes: [4]
strategies:
  - planted_pp: {{schedule: ZBVZeroBubble, mesh: {{dp_shard: 2}}}}
  - planted_pp:
      {{bug: freed-early, schedule: ZBVZeroBubble, mesh: {{dp_shard: 2}}, reshard_after_forward: true}}
""")
    found = done.found("planted-pp")
    assert found == {"none": ROUNDING, "freed-early": DIFFERS}


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("precision", "recomputed", "world_size", "strategies"),
    [
        (
            "fp32",
            "none",
            4,
            """
  - pp: {schedule: [1F1B, Interleaved1F1B], mesh: {dp_replicate: 2}}
  - pp: {schedule: [GPipe, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV], mesh: {dp_shard: 2}}
  - pp: {schedule: [1F1B, LoopedBFS], mesh: {dp_shard: 2}, reshard_after_forward: true}
  - pp: {schedule: ZBVZeroBubble, mesh: {tp: 2}, sequence_parallel: [false, true], loss_parallel: true}
  - pp: {mesh: {tp: 2}, sequence_parallel: [false, true], loss_parallel: [false, true]}""",
        ),
        (
            "bf16",
            "full",
            4,
            """
  - pp: {mesh: {dp_shard: 2}}
  - pp: {mesh: {dp_shard: 2}, reshard_after_forward: true}
  - pp: {mesh: {dp_replicate: 2}}
  - pp: {mesh: {tp: 2}, sequence_parallel: [false, true], loss_parallel: [false, true]}""",
        ),
        (
            "bf16",
            "none",
            4,
            """
  - pp: {schedule: ZBVZeroBubble, mesh: {dp_shard: 2}}
  - pp: {schedule: ZBVZeroBubble, mesh: {tp: 2}, sequence_parallel: [false, true], loss_parallel: true}""",
        ),
        (
            "fp32",
            "none",
            8,
            """
  - pp: {schedule: [1F1B, ZBVZeroBubble], mesh: {dp_shard: 2, tp: 2}, sequence_parallel: true}
  - pp: {mesh: {dp_shard: 2, tp: 2}, loss_parallel: true}
  - pp: {mesh: {dp_replicate: 2, dp_shard: 2}}""",
        ),
    ],
)
def test_every_mesh_is_the_same_training_and_moves_and_keeps_what_theory_says(
    precision, recomputed, world_size, strategies, run_suite
):
    done = run_suite(f"""{MESHES}
precision: {precision}
activation_checkpointing: {recomputed}
measure: {{warmup: 1, steps: 2, trials: 1}}
world_sizes: [{world_size}]
strategies: {strategies}
""")
    assert_same_training(done)
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")


@pytest.mark.train
@pytest.mark.deep
def test_a_pipeline_resumes_from_its_checkpoints_and_from_others(run_suite):
    done = run_suite(f"""{CHECK_SUITE}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
checkpoint: {{}}
strategies: [ddp, {{pp: {{schedule: [1F1B, ZBVZeroBubble]}}}}]
""")
    assert done.code == 0, done.errors
    # from its own shards, its whole state, that of the other, and the other from its state
    assert len(done.checkpoints) > 3


@pytest.mark.train
@pytest.mark.deep
def test_a_mesh_resumes_from_its_checkpoints_and_from_others(run_suite):
    done = run_suite(f"""{MESHES}
measure: {{trials: 0}}
checkpoint: {{}}
world_sizes: [4]
strategies:
  - ddp
  - pp: {{schedule: [1F1B, ZBVZeroBubble], mesh: {{dp_shard: 2}}, micro_batches: 4}}
  - pp: {{mesh: {{dp_replicate: 2}}, micro_batches: 4}}
  - pp: {{mesh: {{tp: 2}}, sequence_parallel: true, micro_batches: 4}}
""")
    assert done.code == 0, done.errors
    assert len(done.checkpoints) > 4
