"""Tensor parallelism: who may be cut, what it should move and keep, and whether it is the same training."""

import ast
import dataclasses
import functools
import tomllib

import pytest

from distbench.adopt import export_case, supported_formats
from distbench.adopt.exported_case import ExportedCase
from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.core.errors import UsageError
from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, ROUNDING
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.tp import TensorParallel
from support import planned_suites
from support.records import case, measured, run_of
from support.suites import SuiteText, write_suite
from support.theory_checks import against_theory, assert_same_training, bytes_by_operation

MODEL = SuiteText(
    "{transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 128, vocab_size: 256, seq_len: 32}}"
)
L, D, S, V = 2, 64, 32, 256
NORMS = (2 * L + 1) * D
# rows
ROWS = 8
planned = functools.partial(planned_suites.planned, workload=MODEL, batch=f"{{global_batch_size: {ROWS}}}")


@pytest.mark.parametrize(
    ("strategy", "world_size", "changed", "why"),
    [
        ("tp: {}", 8, {}, "heads = 4 and kv_heads = 4 are not divisible by 8; numbers of devices that"),
        ("tp: {}", 8, {}, "heads = 4, kv_heads = 4, ffn_dim = 128, vocab_size = 256: 1, 2, 4"),
        (
            "tp: {}",
            2,
            {"workload": "{transformer: {preset: gpt2-small}}"},
            ": 1; set vocab_size: 50304 (padded, as Megatron-LM does",
        ),
        ("tp: {}", 2, {"workload": "{mlp: {}}"}, "the workload mlp does not declare which linear"),
        (
            "tp: {}",
            2,
            {"workload": "{user: {model: 'models.small:Small', length: 32}}"},
            "tensor parallelism: workload.user has no tp_plan, which declares which linear layers are "
            "split by outputs and which by inputs, its embedding and its head; add it "
            '(docs/strategies.md, "Plans of models"), or use transformer',
        ),
        (
            "tp: {sequence_parallel: true}",
            4,
            {"workload": MODEL.replace("seq_len: 32", "seq_len: 30")},
            "sequence_parallel: seq_len = 30 is not divisible by 4 devices; use seq_len: 28 or 32",
        ),
        ("tp: {}", 3, {}, "heads = 4, kv_heads = 4, ffn_dim = 128 and vocab_size = 256 are not divisible by"),
        ("tp: {}", 2, {"compile": "true"}, "compile is not supported with tensor parallelism"),
        (
            "tp: {}",
            2,
            {"optimizer": "sgd"},
            "no fused SGD for sharded tensors; set optimizer.kernel: foreach",
        ),
        (
            "fsdp: {mesh: {tp: 3}}",
            4,
            {},
            "the world size, 4; dp_shard gets the rest; mesh: {tp: 2} or {tp: 4} would fit",
        ),
        ("fsdp: {mesh: {tp: 8}}", 8, {}, "tensor parallelism over 8 devices: heads = 4"),
        ("fsdp: {sequence_parallel: true}", 4, {}, "sequence_parallel needs tensor parallelism; set mesh"),
        (
            "fsdp: {mesh: {tp: 2}, cpu_offload: true}",
            4,
            {},
            "mesh: {tp: 2} does not support offload; set cpu_offload: false",
        ),
        ("fsdp: {mesh: {tp: 2}, sharding: hybrid}", 2, {}, "hybrid sharding needs at least 2 ranks"),
    ],
)
def test_what_can_not_be_cut_is_refused_with_the_numbers(strategy, world_size, changed, why, tmp_path):
    assert why in (planned(tmp_path, strategy, world_size, **changed).problem or "")


def test_a_padded_vocabulary_can_be_cut(tmp_path):
    model = "{transformer: {preset: gpt2-small, vocab_size: 50304}}"
    assert planned(tmp_path, "tp: {}", 2, workload=model).problem is None


@pytest.mark.parametrize(
    ("strategy", "label"),
    [
        ("tp: {}", "tp"),
        ("tp: {sequence_parallel: true, loss_parallel: true}", "tp+sp+lp"),
        ("fsdp: {mesh: {tp: 2}}", "fsdp+tp2"),
        ("fsdp: {mesh: {tp: 2}, sharding: hybrid, sequence_parallel: true}", "fsdp-hybrid+tp2+sp"),
    ],
)
def test_a_name_says_what_is_cut(strategy, label, tmp_path):
    assert planned(tmp_path, strategy, 4).case.label == label


@pytest.mark.parametrize(
    ("mesh", "told"),
    [
        ("{pp: 2}", "mesh.pp = 2: Allowed: dp_replicate, dp_shard, tp; strategies that have pp: pp, zero"),
        ("{cp: [1, 2]}", "mesh.cp[1] = 2: Allowed: dp_replicate, dp_shard, tp; strategies that have cp: cp"),
        ("{dp: 1}", "mesh.dp = 1: Allowed: dp_replicate, dp_shard, tp"),
        ("{tp: 0}", "mesh.tp = 0: must be at least 1"),
        ("{tp: [2, 0]}", "mesh.tp[1] = 0: must be at least 1"),
        ("{tp: []}", "mesh.tp: empty; list at least one value"),
        ("all", "mesh = 'all': expected a mapping or auto"),
    ],
)
def test_a_dimension_of_a_mesh_that_can_not_be_is_refused_with_its_line(mesh, told, distbench, tmp_path):
    suite = write_suite(
        tmp_path,
        f"workload: {MODEL}\nbatch: {{global_batch_size: 8}}\nstrategies:\n  - fsdp: {{mesh: {mesh}}}\n",
    )
    done = distbench("plan", str(suite))
    assert done.returncode == 2
    assert f"suite.yaml:4: strategies[0].fsdp.{told}" in done.stderr


@pytest.mark.parametrize(
    ("batch", "cut"),
    [
        ("{global_batch_size: 8}", Batch(8, 4, 1)),
        ("{global_batch_size: 8, micro_batch_size: 2}", Batch(8, 2, 2)),
        # of the same work per device those that share rows have the samples of all of them
        ("{per_device_batch_size: 2}", Batch(8, 4, 1)),
    ],
)
def test_ranks_that_share_rows_share_samples(batch, cut, tmp_path):
    assert planned(tmp_path, "fsdp: {mesh: {tp: 2}}", 4, batch=batch).case.batch == cut


@pytest.mark.parametrize(
    ("strategy", "batch", "why"),
    [
        (
            "fsdp: {mesh: {tp: 2}}",
            "{global_batch_size: 8, micro_batch_size: 3}",
            "8: is not divisible by data-parallel ranks x micro_batch_size = 2 x 3; use 6 or 12",
        ),
        (
            "tp: {}",
            "{per_device_batch_size: 1, micro_batch_size: 3}",
            "1: x 4 devices per data-parallel rank is not divisible by micro_batch_size = 3; use 3",
        ),
    ],
)
def test_a_batch_that_does_not_divide_says_by_what(strategy, batch, why, tmp_path):
    with pytest.raises(UsageError, match=why.replace("(", r"\(")):
        planned(tmp_path, strategy, 4, batch=batch)


def tensor_parallel_case(strategy: str, world_size: int, **changed: object) -> Case:
    """A case of *strategy* on the small model, in fp32."""
    options = {"dim": D, "depth": L, "heads": 4, "kv_heads": 4, "ffn_dim": 128, "vocab_size": V, "seq_len": S}
    return case(
        strategy,
        world_size,
        workload=PluginChoice("transformer", options),
        **{"batch": Batch(ROWS, ROWS, 1), **changed},
    )


ACTIVATION = ROWS * S * D * 4
LOGITS = ROWS * S * V * 4
OF_LOSS = 3 * ROWS * S * 4


@pytest.mark.parametrize(
    ("strategy", "recomputed", "moved"),
    [
        (TensorParallel(), "none", {"all_reduce": (4 * L + 2) * ACTIVATION, "all_gather": LOGITS}),
        (TensorParallel(loss_parallel=True), "none", {"all_reduce": (4 * L + 2) * ACTIVATION + OF_LOSS}),
        # a layer that is made again goes on to its last reduction, but not through it
        (TensorParallel(loss_parallel=True), "full", {"all_reduce": (5 * L + 2) * ACTIVATION + OF_LOSS}),
        (
            TensorParallel(sequence_parallel=True),
            "selective",
            {
                "all_gather": (6 * L + 2) * ACTIVATION + LOGITS,
                "reduce_scatter": (5 * L + 2) * ACTIVATION,
                "all_reduce": NORMS * 4,
            },
        ),
    ],
)
def test_what_moves_is_megatrons_four_reductions_a_block_and_two(strategy, recomputed, moved):
    asked = tensor_parallel_case("tp", 2, activation_checkpointing=recomputed)
    assert bytes_by_operation(strategy, asked, 100_000) == moved


def test_on_a_mesh_both_dimensions_move_their_own():
    parameters, strategy = 100_000, FullyShardedDataParallel(mesh={"tp": 2})
    asked = tensor_parallel_case("fsdp", 4, batch=Batch(ROWS, ROWS // 2, 1))
    part = NORMS + (parameters - NORMS) // 2
    assert bytes_by_operation(strategy, asked, parameters) == {
        "all_gather": 2 * part * 4 + LOGITS / 2,
        "reduce_scatter": part * 4,
        "all_reduce": (4 * L + 2) * ACTIVATION / 2,
    }
    assert strategy.model_states(asked, parameters)["optimizer_state"] == part * 8 / 2


def test_one_rank_alone_moves_nothing_and_keeps_all():
    asked = tensor_parallel_case("tp", 1)
    assert bytes_by_operation(TensorParallel(), asked, 100_000) == {}
    assert TensorParallel().model_states(asked, 100_000)["parameters"] == 400_000


@pytest.mark.parametrize("batch", [Batch(ROWS, ROWS, 1), Batch(ROWS, ROWS // 2, 2)])
def test_ranks_that_share_rows_are_as_fast_relative_to_ddp_as_they_are(batch):
    ddp, cut = (
        tensor_parallel_case("ddp", 2, batch=Batch(ROWS, ROWS // 2, 1)),
        tensor_parallel_case("tp", 2, batch=batch),
    )
    run = run_of(measured(ddp, 1000.0), measured(cut, 750.0))
    assert [row.relative_throughput for row in run.cases] == [1.0, 0.75]


def test_torchtitan_is_told_the_mesh_and_others_say_why_not():
    bf16 = PrecisionConfig("bf16")
    asked = tensor_parallel_case("fsdp", 4, device="cuda", precision=bf16, batch=Batch(ROWS, ROWS // 2, 1))
    options = {"mesh": {"tp": 2}, "sequence_parallel": True, "loss_parallel": True}
    meshed = dataclasses.replace(asked, strategy=PluginChoice("fsdp", options))
    assert supported_formats(ExportedCase.of(meshed, {})) == ["torch", "torchtitan", "torchtitan-toml"]
    (text,) = export_case("torchtitan-toml", meshed, {}).files.values()
    parallelism = tomllib.loads(text)["parallelism"]
    assert parallelism["tensor_parallel_degree"] == 2
    assert parallelism["data_parallel_shard_degree"] == 2
    assert parallelism["disable_loss_parallel"] is False
    with pytest.raises(UsageError, match="--as accelerate: Accelerate and Trainer split layers by"):
        export_case("accelerate", meshed, {})
    plain = dataclasses.replace(asked, strategy=PluginChoice("tp"), batch=Batch(ROWS, ROWS, 1))
    with pytest.raises(UsageError, match="tensor parallelism always uses sequence parallelism"):
        export_case("torchtitan-toml", plain, {})
    (newer,) = export_case("torchtitan", dataclasses.replace(plain, precision=bf16), {}).files.values()
    assert "enable_sequence_parallel=False" in newer


@pytest.mark.parametrize("sequence", [False, True])
def test_a_script_of_plain_torch_says_how_each_layer_is_cut(sequence):
    options = {"mesh": {"dp_replicate": 2, "tp": 2}, "sequence_parallel": sequence}
    asked = dataclasses.replace(
        tensor_parallel_case("fsdp", 8, batch=Batch(ROWS, ROWS // 4, 1)),
        strategy=PluginChoice("fsdp", options),
    )
    adopted = export_case("torch", asked, {})
    text = adopted.files["adopted_torch.py"]
    ast.parse(text)
    assert (
        'mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))' in text
    )
    assert '"mesh": mesh["dp_replicate", "dp_shard"],' in text
    assert '"blocks.*.attention.wo": RowwiseParallel(output_layouts=between),' in text
    assert ('"norm": SequenceParallel(),' in text) == sequence
    assert any("rank // 2 selects a rank's micro-batches" in note for note in adopted.notes)
    with pytest.raises(UsageError, match="--skeleton: its small model has none of the layers"):
        export_case("torch", asked, {}, with_script=True)
    foreign = dataclasses.replace(asked, workload=PluginChoice("mine"))
    with pytest.raises(UsageError, match="only the user's code defines how its model is split"):
        export_case("torch", foreign, {})


CHECK_SUITE = SuiteText(f"""
workload: {MODEL}
batch: {{global_batch_size: 8, micro_batch_size: 4}}
launcher: {{kept: {{oversubscribe: true}}}}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{trials: 0}}
check: {{steps: 3, perturbed: 4}}
""")


@pytest.mark.train
def test_a_split_model_is_the_same_training_and_mistakes_in_it_are_found(run_suite):
    bugs = ("untied", "partial-norms")
    done = run_suite(
        f"""{CHECK_SUITE.replace("seq_len: 32", "seq_len: 32, tied: true")}
world_sizes: [2]
strategies:
  - tp: {{sequence_parallel: true}}
  - planted_tp: {{bug: [{", ".join(bugs)}]}}
  - fsdp: {{mesh: {{tp: 2}}, loss_parallel: true}}
include: [{{strategy: "fsdp*", world_size: 4}}]
exclude: [{{strategy: "fsdp*", world_size: 2}}]
"""
    )
    assert {done.verdicts[name] for name in done.verdicts if "planted" not in name} <= {EQUIVALENT, ROUNDING}
    found = done.found("planted-tp")
    assert {bug: found[bug] for bug in bugs} == dict.fromkeys(bugs, DIFFERS)


@pytest.mark.train
@pytest.mark.deep
def test_copies_of_shards_of_a_split_model_are_the_same_training_and_move_what_theory_says(run_suite):
    measured_too = "measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 1}"
    suite = CHECK_SUITE.replace("measure: {trials: 0}", measured_too).replace("size: 4", "size: 2")
    options = "mesh: {dp_replicate: 2, tp: 2}, sequence_parallel: [false, true]"
    done = run_suite(f"{suite}world_sizes: [8]\nstrategies: [{{fsdp: {{{options}}}}}]\n")
    assert_same_training(done)
    found = against_theory(done.folder)
    assert found == dict.fromkeys(found, "")
    assert len(found) == 2


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("precision", "recomputed", "tied"), [("fp32", "none", "true"), ("bf16", "full", "false")]
)
def test_a_model_that_is_cut_is_the_same_training(precision, recomputed, tied, run_suite):
    done = run_suite(
        f"""{CHECK_SUITE.replace("seq_len: 32", f"seq_len: 32, tied: {tied}")}
world_sizes: [2]
precision: {precision}
activation_checkpointing: {recomputed}
strategies:
  - tp: {{sequence_parallel: [false, true], loss_parallel: [false, true]}}
  - fsdp: {{mesh: {{tp: 2}}, sequence_parallel: [false, true]}}
  - fsdp: {{mesh: {{tp: 2}}, sharding: [grad_op, hybrid], loss_parallel: true}}
include:
  - {{strategy: "*", world_size: 4}}
exclude:
  - {{strategy: "fsdp-hybrid*", world_size: 2}}
"""
    )
    assert_same_training(done)


@pytest.mark.train
@pytest.mark.deep
def test_mistakes_of_a_cut_model_are_found(run_suite):
    bugs = ("partial-norms", "untied", "local-positions", "local-clipping")
    done = run_suite(
        CHECK_SUITE.replace("seq_len: 32", "seq_len: 32, tied: true")
        + f"world_sizes: [2]\nstrategies: [{{planted_tp: {{bug: [none, {', '.join(bugs)}]}}}}]\n"
    )
    found = done.found("planted-tp")
    assert found == {"none": ROUNDING, **dict.fromkeys(bugs, DIFFERS)}
