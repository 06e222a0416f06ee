"""Context parallelism: whose rows may be cut by positions, what moves, and if it is the same training."""

import dataclasses
import functools
from contextlib import nullcontext

import pytest

from distbench.adopt import export_case
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.core.errors import UsageError
from distbench.jobs.convergence.verdict import ConvergenceEvidence
from distbench.jobs.equivalence.arms import DIFFERS, ROUNDING
from distbench.record.run_folder import Run
from distbench.strategies.cp import ContextParallel
from distbench.strategies.description import ExpectedCollective
from support import planned_suites
from support.records import case
from support.releases import needs_release
from support.suites import SuiteText
from support.theory_checks import against_theory, assert_same_training

OPTIONS = {"dim": 64, "depth": 2, "heads": 4, "kv_heads": 4, "ffn_dim": 128, "vocab_size": 256, "seq_len": 32}
MODEL = SuiteText(f"{{transformer: {{{', '.join(f'{key}: {value}' for key, value in OPTIONS.items())}}}}}")
# rows, layers, positions, width
ROWS, L, S, D = 8, 2, 32, 64
planned = functools.partial(planned_suites.planned, workload=MODEL, batch=f"{{global_batch_size: {ROWS}}}")


@pytest.mark.parametrize(
    ("strategy", "world_size", "changed", "why"),
    [
        (
            "cp: {}",
            1,
            {},
            "at least 2 devices per sequence, but this case has one; use ddp, or a larger world size",
        ),
        ("cp: {}", 8, {}, "heads = 4 and kv_heads = 4 are not divisible by 8; numbers of devices that"),
        ("cp: {}", 8, {}, "heads = 4, kv_heads = 4, seq_len = 32: 1, 2, 4"),
        (
            "cp: {}",
            4,
            {"workload": MODEL.replace("kv_heads: 4", "kv_heads: 2")},
            "kv_heads = 2 is not divisible by 4; numbers of devices that divide heads = 4, kv_heads = 2, "
            "seq_len = 32: 1, 2",
        ),
        ("cp: {}", 4, {"workload": MODEL.replace("32}}", "30}}")}, "seq_len = 30 is not divisible by 4"),
        ("cp: {}", 4, {"workload": MODEL.replace("32}}", "30}}")}, "1, 2; or use seq_len: 28 or 32"),
        (
            "cp: {}",
            2,
            {"workload": "{mlp: {}}"},
            "of distbench.workloads.mlp.Mlp with context_split() and shard_sequence()",
        ),
        ("cp: {}", 2, {"compile": "true"}, "compile is not supported with context parallelism"),
        (
            "cp: {implementation: ring}",
            4,
            {"workload": MODEL.replace("32}}", "36}}")},
            "into 8 chunks, 2 per device, but seq_len = 36 is not divisible by 8; use seq_len: 32 or 40",
        ),
        (
            "cp: {implementation: ring}",
            2,
            {"workload": MODEL.replace("32}}", "32, attention: sliding_window, window: 8}}")},
            "does not support a sliding window; use implementation: ulysses, or attention: full",
        ),
        ("cp: {mesh: {cp: 3}}", 4, {}, "mesh: {cp: 3}: 3 does not divide the world size, 4"),
        (
            "cp: {sharded: true}",
            2,
            {"optimizer": "{name: sgd, kernel: fused}"},
            "no fused SGD for sharded tensors; set optimizer.kernel: foreach",
        ),
        ("cp: {mesh: {cp: 1}}", 2, {}, "but mesh: {cp: 1} gives each sequence one; use ddp, or remove mesh"),
    ],
)
def test_what_can_not_be_cut_is_refused_with_the_numbers(strategy, world_size, changed, why, tmp_path):
    assert why in (planned(tmp_path, strategy, world_size, **changed).problem or "")


@pytest.mark.parametrize(
    ("seq_len", "precision", "why"),
    [
        (
            128,
            "fp32",
            "8 chunks, 2 per device, in fp32 on CUDA each of a multiple of 32 positions, but seq_len = 128 "
            "is not divisible by 256; use seq_len: 256",
        ),
        (384, "fp32", "seq_len = 384 is not divisible by 256; use seq_len: 256 or 512"),
        (256, "fp32", ""),
        (128, "bf16", ""),
    ],
)
def test_a_ring_in_fp32_on_gpus_wants_chunks_that_its_kernel_does_not_pad(seq_len, precision, why, tmp_path):
    changed = {"workload": MODEL.replace("32}}", f"{seq_len}}}}}"), "precision": precision}
    machine = dataclasses.replace(planned_suites.MACHINE, device="cuda")
    problem = planned(tmp_path, "cp: {implementation: ring}", 4, machine=machine, **changed).problem
    assert why in (problem or "")
    assert bool(why) == bool(problem)


@pytest.mark.train
@needs_release("torch", "2.10")
@pytest.mark.parametrize(("positions", "is_merged"), [(16, False), (64, True)])
def test_what_that_kernel_pads_is_what_torchs_ring_does_not_merge(positions, is_merged):
    import torch
    from torch.distributed.tensor.experimental._context_parallel import _attention

    def chunk(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.empty(1, 2, length, 8, device="meta")
        attend = torch.ops.aten._scaled_dot_product_efficient_attention
        out, logsumexp, *_ = attend(x, x, x, None, True, 0.0, True)
        return out, logsumexp

    merger = _attention._SDPAMerger(True, 2)
    merger.step(*chunk(positions), partial=False)
    with nullcontext() if is_merged else pytest.raises((RuntimeError, AssertionError)):
        merger.step(*chunk(positions // 2), partial=True)


@pytest.mark.parametrize(
    ("strategy", "label", "batch"),
    [
        ("cp: {}", "cp", Batch(8, 8, 1)),
        ("cp: {sharded: true}", "cp+fsdp", Batch(8, 8, 1)),
        ("cp: {mesh: {cp: 2}}", "cp2+ddp", Batch(8, 4, 1)),
        ("cp: {implementation: ring}", "cp-ring", Batch(8, 8, 1)),
        ("cp: {implementation: ring, mesh: {cp: 2}}", "cp2-ring+ddp", Batch(8, 4, 1)),
        ("cp: {mesh: {cp: 2}, sharded: true}", "cp2+fsdp", Batch(8, 4, 1)),
    ],
)
def test_a_name_says_who_shares_rows_and_those_who_do_share_samples(strategy, label, batch, tmp_path):
    found = planned(tmp_path, strategy, 4)
    assert (found.problem, found.case.label, found.case.batch) == (None, label, batch)


def context_parallel_case(
    strategy: ContextParallel, world_size: int, batch: Batch, **changed: object
) -> Case:
    """A case of *strategy* on the small model, in fp32."""
    options = {**dataclasses.asdict(strategy), "mesh": dict(strategy.mesh)}
    workload = PluginChoice("transformer", {**OPTIONS, **changed.pop("options", {})})
    return case(
        "cp", world_size, strategy=PluginChoice("cp", options), workload=workload, batch=batch, **changed
    )


@pytest.mark.parametrize(
    ("kv_heads", "recomputed", "passes", "synchronizations_of_a_layer"),
    # the selective policy keeps some operators, so how ranks meet again in backward is not known
    [(4, "none", 2, 4), (2, "none", 2, 4), (4, "full", 3, 6), (4, "selective", 3, None)],
)
def test_a_layer_exchanges_four_times_forward_and_four_times_backward(
    kv_heads, recomputed, passes, synchronizations_of_a_layer
):
    asked = context_parallel_case(
        ContextParallel(),
        2,
        Batch(ROWS, ROWS // 2, 2),
        options={"kv_heads": kv_heads},
        activation_checkpointing=recomputed,
    )
    # queries and what comes out are as wide as the model, keys and values as their heads
    moved = passes * L * ROWS * S // 2 * (2 * D + 2 * D * kv_heads // 4) * 4
    exchanged, averaged = ContextParallel().traffic(asked, 1000)
    # queries, keys and values one after another, then what comes out
    synchronizations = synchronizations_of_a_layer and 2 * L * synchronizations_of_a_layer
    assert exchanged == ExpectedCollective("all_to_all", moved, "cp", 2 * passes * 4 * L, synchronizations)
    assert averaged == ExpectedCollective("all_reduce", 4000, "cp", 1, synchronizations and 1)


@pytest.mark.parametrize(("recomputed", "passes"), [("none", 2), ("full", 3)])
def test_round_a_ring_keys_and_values_go_in_each_pass_and_their_gradients_in_fp32(recomputed, passes):
    strategy, bf16 = ContextParallel(implementation="ring"), PrecisionConfig("bf16")
    asked = context_parallel_case(
        strategy, 4, Batch(ROWS, ROWS, 1), precision=bf16, activation_checkpointing=recomputed
    )
    both = 2 * L * ROWS * S * D
    assert strategy.traffic(asked, 1000)[:2] == [
        ExpectedCollective("all_gather", passes * both * 2, "cp", passes * L, passes * L),
        ExpectedCollective("all_to_all", both * 4, "cp", 4 * L, 4 * L),
    ]


def test_on_a_mesh_rows_are_divided_first_and_gradients_are_summed_over_all():
    strategy = ContextParallel(mesh={"cp": 2})
    asked = context_parallel_case(strategy, 4, Batch(ROWS, ROWS // 2, 1))
    moved = 2 * L * ROWS // 2 * S // 2 * 4 * D * 4
    assert strategy.traffic(asked, 1000) == [
        ExpectedCollective("all_to_all", moved, "cp", 8 * L, 4 * L),
        ExpectedCollective("all_reduce", 4000, "dp_replicate x cp", 1, 1),
    ]
    assert strategy.mesh_sizes(4) == {"dp_replicate": 2, "cp": 2}
    assert [strategy.data_parallel_rank(rank, 4) for rank in range(4)] == [0, 0, 1, 1]


def test_a_model_that_is_sharded_is_gathered_and_scattered_over_all():
    strategy = ContextParallel(mesh={"cp": 2}, sharded=True)
    found = strategy.traffic(context_parallel_case(strategy, 4, Batch(ROWS, ROWS // 4, 2)), 1000)
    assert found[1:] == [
        ExpectedCollective("all_gather", 2 * 2 * 4000, "dp_shard x cp", 2 * (2 * L + 1), 2 * (L + 2) - 1),
        ExpectedCollective("reduce_scatter", 2 * 4000, "dp_shard x cp", 2 * (L + 1), 2 * L),
    ]


@pytest.mark.parametrize(("sharded", "kept"), [(False, 4000), (True, 1000)])
def test_a_rank_keeps_a_whole_model_or_a_shard_of_it(sharded, kept):
    strategy = ContextParallel(sharded=sharded)
    states = strategy.model_states(context_parallel_case(strategy, 4, Batch(ROWS, ROWS, 1)), 1000)
    assert states["parameters"] == states["gradients"] == kept


def test_no_format_says_how_rows_are_divided():
    with pytest.raises(
        UsageError, match="no format can express Ulysses; torchtitan's context parallelism is a ring"
    ):
        export_case("torchtitan", context_parallel_case(ContextParallel(), 2, Batch(ROWS, ROWS, 1)), {})


CHECK_SUITE = SuiteText(f"""
workload: {MODEL.replace("}}", ", tied: true}}")}
batch: {{global_batch_size: 8, micro_batch_size: 4}}
launcher: {{kept: {{oversubscribe: true}}}}
""")


@pytest.mark.train
@needs_release("torch", "2.10")
def test_mistakes_of_rows_that_are_cut_are_found(run_suite):
    bugs = ("local-positions", "mean-of-means")
    done = run_suite(f"""{CHECK_SUITE}
data: headless
optimizer: {{name: sgd, lr: 0.1, clip_grad_norm: 0.1}}
measure: {{trials: 0}}
check: {{steps: 2, perturbed: 4, fp64: false}}
world_sizes: [2]
strategies: [{{planted_cp: {{bug: [none, {", ".join(bugs)}]}}}}, {{cp: {{implementation: ring}}}}]
""")
    found = done.found("planted-cp")
    assert found == {"none": ROUNDING, "cp-ring": ROUNDING, **dict.fromkeys(bugs, DIFFERS)}


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("by", "attention", "data", "precision", "recomputed"),
    [
        ("ulysses", "full", "text", "fp32", "none"),
        ("ulysses", "full", "headless", "bf16", "full"),
        ("ulysses", "sliding_window, window: 5", "text", "fp32", "selective"),
        ("ulysses", "sliding_window, window: 12", "text", "bf16", "none"),
        ("ring", "full", "headless", "fp32", "selective"),
        ("ring", "full", "text", "bf16", "full"),
    ],
)
def test_rows_that_are_cut_are_the_same_training_and_move_what_theory_says(
    by, attention, data, precision, recomputed, run_suite
):
    done = run_suite(f"""{CHECK_SUITE.replace("tied: true", f"tied: true, attention: {attention}")}
data: {data}
precision: {precision}
activation_checkpointing: {recomputed}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4, fp64: false}}
world_sizes: [2, 4]
strategies:
  - cp: {{implementation: {by}, sharded: [false, true]}}
  - cp: {{implementation: {by}, mesh: {{cp: 2}}, sharded: [false, true]}}
exclude: [{{strategy: "cp2*", world_size: 2}}]
""")
    assert_same_training(done)
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")
    assert len(done.verdicts) == 6


@pytest.mark.train
@pytest.mark.deep
def test_a_window_is_the_same_training_however_layers_are_cut(run_suite):
    done = run_suite(f"""{CHECK_SUITE.replace("tied: true", "attention: sliding_window, window: 5")}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{trials: 0}}
check: {{steps: 3, perturbed: 4, fp64: false}}
world_sizes: [2]
strategies: [ddp, fsdp, {{tp: {{sequence_parallel: [false, true]}}}}, {{pp: {{micro_batches: 2}}}}]
""")
    assert_same_training(done)


@pytest.mark.train
@pytest.mark.deep
def test_rows_that_are_cut_are_judged_whole(run_suite):
    done = run_suite(f"""{CHECK_SUITE}
optimizer: {{lr: 0.01}}
measure: {{trials: 0}}
converge: {{targets: {{bits_per_byte: 6}}, max_steps: 10, eval_every: 5, eval_samples: 16, seeds: 1}}
world_sizes: [2]
strategies: [ddp, {{cp: {{sharded: [false, true]}}}}, {{cp: {{implementation: ring}}}}]
""")
    assert done.code == 0, done.errors
    cases = {row.case.label: row for row in RunAnalysis.read(Run(done.folder)).cases}
    values = {
        label: [row["value"] for training in found.group.trainings for row in training.curve]
        for label, case in cases.items()
        if (found := case.evidence(ConvergenceEvidence))
    }
    whole = [value for value in values.pop("ddp") if value is not None]
    assert len(whole) == 2
    for label in ("cp", "cp+fsdp", "cp-ring"):
        assert [value for value in values[label] if value is not None] == pytest.approx(whole, rel=1e-4)


@pytest.mark.train
@pytest.mark.deep
def test_rows_that_are_cut_resume_from_checkpoints_and_from_those_of_others(run_suite):
    done = run_suite(f"""{CHECK_SUITE}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{trials: 0}}
checkpoint: {{}}
world_sizes: [2]
strategies: [ddp, {{cp: {{sharded: [false, true]}}}}]
""")
    assert done.code == 0, done.errors
    assert len(done.checkpoints) > 3
