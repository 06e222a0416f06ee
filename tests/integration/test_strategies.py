"""All strategies, on real processes, do the same work: their losses and gradients agree with ``single``."""

import functools
from pathlib import Path
from typing import Any

import pytest

from support.runs import Finished, run_in

STRATEGIES = """
strategies:
  - single
  - ddp
  - fsdp: {sharding: [full, grad_op, hybrid]}
  - fsdp: {cpu_offload: true}
  - fsdp: {version: 1}
  - zero: {stage: [0, 1, 2, 3]}
  - zero: {stage: [1, 2, 3], offload_optimizer: cpu}
  - zero: {stage: 3, offload_optimizer: cpu, offload_parameters: cpu}
"""
BASE = """
workload: {transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 2, ffn_dim: 128, seq_len: 32}}
batch: {global_batch_size: 8}
world_sizes: [1, 2]
"""
VARIANTS = {
    "plain": "measure: {warmup: 2, steps: 5, trials: 1}",
    "accumulated": """
measure: {warmup: 1, steps: 4, trials: 1}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
optimizer: {clip_grad_norm: 0.5, weight_decay: 0.1}
activation_checkpointing: full
""",
    "bf16-wide": "measure: {warmup: 1, steps: 3, trials: 1}\nprecision: bf16\nactivation_checkpointing: full",
    "sgd": """
measure: {warmup: 1, steps: 4, trials: 1}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9, kernel: foreach}
""",
}
# relative: fp32 rounding over a few steps; bf16 has 8 bits of mantissa
TOLERANCE = {"plain": 1e-5, "accumulated": 1e-5, "fp32": 1e-5, "bf16": 2e-3, "bf16-wide": 2e-3, "sgd": 1e-5}


MATRIX = ("fp32", "bf16")
TWO_MICRO_BATCHES = ("accumulated", *MATRIX)
"""Variants of two micro batches a step, and a clipped gradient."""


@pytest.fixture(
    scope="module",
    params=[*MATRIX, *(pytest.param(variant, marks=pytest.mark.deep) for variant in sorted(VARIANTS))],
)
def run(request, matrix, tmp_path_factory) -> tuple[str, Path]:
    """A variant and the folder of its run: the shared matrix, or every strategy at world sizes 1 and 2."""
    variant = request.param
    if variant in MATRIX:
        finished = matrix(variant)
    else:
        replaced = VARIANTS[variant]
        lines = [line for line in BASE.splitlines() if f"{line.partition(':')[0]}:" not in replaced]
        text = "\n".join(lines) + f"\n{replaced}\n{STRATEGIES}"
        finished = run_in(tmp_path_factory.mktemp(variant), text)
    assert finished.code == 0, finished.errors
    return variant, finished.folder


@functools.cache
def records(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Every measured record by strategy and world size."""
    every = [Finished.read(file) for file in folder.glob("trials/*/0/record.json")]
    return {(label_of(r), r["case"]["world_size"]): r for r in every if r["status"] == "measured"}


def label_of(record: dict[str, Any]) -> str:
    """Label of the strategy, with what the name of its case adds to it."""
    once = record["case"]["name"].endswith("reduce_each_micro_batch=false")
    return record["case"]["label"] + ("+once" if once else "")


def curve(record: dict[str, Any], column: str = "loss") -> list[float]:
    ranks = record["samples"][column]
    return [sum(step) / len(step) for step in zip(*ranks, strict=True)]


BOTH = {"ddp", "fsdp", "fsdp-grad-op", "fsdp1", "zero0", "zero1", "zero2", "zero3", "zero3+offload-all"}
MEASURED = {
    "fp32": {
        ("single", 1),
        *((label, 2) for label in BOTH | {"fsdp1-grad-op", "fsdp+offload", "fsdp+once", "zero2+offload"}),
        *((label, 4) for label in ("fsdp-hybrid", "fsdp1-hybrid", "zero3+hpz2")),
        ("zero1+tp2", 2),
        ("zero1+pp2", 2),
    },
    "bf16": {
        ("single", 1),
        *((label, 2) for label in ("ddp", "fsdp", "fsdp1", "zero0", "zero1", "zero2", "zero3")),
    },
}


def test_every_strategy_was_measured_but_where_it_cannot_be(run):
    variant, folder = run
    found = records(folder)
    if variant in MATRIX:
        assert found.keys() >= MEASURED[variant]
        assert ("fsdp1-hybrid", 2) not in found
    else:
        assert {(label, size) for label in BOTH for size in (1, 2)} <= found.keys()
        assert ("fsdp-hybrid", 2) in found
        assert ("fsdp-hybrid", 1) not in found


def test_the_losses_agree_with_single_at_every_step(run):
    variant, folder = run
    found = records(folder)
    expected = curve(found["single", 1])
    for key, record in found.items():
        assert curve(record) == pytest.approx(expected, rel=TOLERANCE[variant]), key
    assert len(set(expected)) == len(expected), "the loss moves, so that agreeing means something"


def test_the_gradient_norms_agree_with_single(run):
    variant, folder = run
    found = records(folder)
    expected = curve(found["single", 1], "grad_norm")
    assert len(found) > 1 and expected
    for key, record in found.items():
        # a norm sums many roundings; a missing average would be off by the world size
        assert curve(record, "grad_norm") == pytest.approx(expected, rel=20 * TOLERANCE[variant]), key


def test_the_layers_of_every_strategy_do_the_work_of_the_model(run):
    _, folder = run
    found = records(folder)
    assert found
    for key, record in found.items():
        rows = record["tables"]["layers"]
        names = {row["layer"] for row in rows}
        # DeepSpeed's PipelineModule holds a stage with a tied embedding below these names
        below = "tied_modules.tied.module." if key == ("zero1+pp2", 2) else ""
        assert {None, f"{below}blocks.*.ffn.up", f"{below}head"} <= names, key
        ranks = range(record["case"]["world_size"])
        # 1/3 of the FLOPs of both passes; ranks of a model-parallel group share a sample's
        whole = sum(row.get("forward_flops") or 0 for row in rows)
        if key == ("zero1+tp2", 2):
            # DeepSpeed does not split the head
            whole -= sum(row["forward_flops"] for row in rows if row["layer"] == "head") / 2
        samples = record["case"]["batch"]["global_batch_size"]
        assert whole * 3 == pytest.approx(record["values"]["flops_per_sample"] * samples, rel=0.01), key
        for part in ("forward", "backward"):
            of_rank = [sum(row[f"{part}_s"] for row in rows if row["rank"] == rank) for rank in ranks]
            told = [sum(steps) / len(steps) for steps in record["samples"][f"profile_{part}_s"]]
            assert of_rank == pytest.approx(told, rel=1e-6), (key, part)


def test_what_the_live_engines_say_of_themselves_is_what_was_asked_for(run):
    variant, folder = run
    found = records(folder)
    assert found
    for (label, size), record in found.items():
        effective = record["effective"]
        assert effective["world_size"] == size, label
        parts = 2 if variant in TWO_MICRO_BATCHES and label != "zero1+pp2" else 1
        assert effective["gradient_accumulation_steps"] == parts, label
        assert effective["clip_grad_norm"] == (0.5 if variant in TWO_MICRO_BATCHES else None), label
        assert effective["dtypes"]["compute"] == ("bf16" if variant.startswith("bf16") else "fp32"), label
        if label.startswith("zero"):
            assert effective["zero_stage"] == int(label[4]), label
            assert effective["overlap_comm"] == (label[4] == "3"), label
            assert effective["throughput_timer"] is False, label
            assert effective["reduce_bucket_size"] < effective["parameters"] / 2, label
        assert effective["optimizer"]["kernel"] == ("foreach" if variant == "sgd" else "fused"), label


# bytes of a step over those of the weights, of two micro batches: gathers are made in each, and reductions
# unless the strategy adds the gradients up first; the root unit of fsdp stays gathered
WIRE = {"ddp": 1, "zero0": 1, "fsdp-grad-op": 4, "fsdp1-grad-op": 4}


def test_collectives_are_those_of_the_textbook(run):
    variant, folder = run
    found = records(folder)
    whole = 4 * found["single", 1]["effective"]["parameters"]
    volume = {key: record["values"]["comm_bytes"] / whole for key, record in found.items()}
    assert all(volume[key] == 0 for key in volume if key[1] == 1)
    if variant == "fp32":
        for label, times in WIRE.items():
            assert volume[label, 2] == pytest.approx(times, rel=0.01), label
    if variant in ("plain", "sgd"):
        assert volume["ddp", 2] == pytest.approx(1, rel=0.01)
        assert volume["zero0", 2] == pytest.approx(1, rel=0.01)
        assert volume["fsdp-grad-op", 2] == pytest.approx(2, rel=0.02)
        # the root unit stays gathered, so less than the textbook's 3
        assert 2 < volume["fsdp", 2] < 3
        assert volume["zero3", 2] > 2


def test_nothing_is_left_in_shared_memory(run):
    assert not list(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"))


def test_the_buckets_of_ddp_are_torchs_own_unless_they_are_set(tmp_path):
    suite = """
workload: {transformer: {preset: tiny, seq_len: 32}}
batch: {global_batch_size: 2}
measure: {warmup: 2, steps: 1, trials: 1, profile_steps: 0}
strategies: [{ddp: {bucket_cap_mb: [25, 24]}}]
world_sizes: [2]
"""
    finished = run_in(tmp_path, suite)
    assert finished.code == 0, finished.errors
    calls = {row["label"]: row["values"]["comm_calls"]["value"] for row in finished.cases.values()}
    # 4 MiB of gradients: torch's first bucket has 1 MiB, to begin earlier; a size that is set is of all
    assert calls == {"ddp": 2, "ddp+24mb": 1}
    assert finished.record("ddp")["effective"]["smaller_first_bucket"] is True


@pytest.mark.parametrize("stages", ["0, 3", pytest.param("1, 2", marks=pytest.mark.deep)])
def test_deepspeed_in_fp16_updates_by_the_gradients_that_single_has(stages, tmp_path):
    # AdamW forgives a gradient that is 1024 times too small, plain SGD doesn't; a norm with the loss scale
    # in it would be 1024 times too large, and of gradients without it the limit would never clip one
    suite = f"""
workload: {{user: {{model: "small:Small", length: 32}}}}
data: text
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
optimizer: {{name: sgd, lr: 1.0, clip_grad_norm: 0.5}}
precision: fp16
measure: {{warmup: 1, steps: 3, trials: 1, profile_steps: 0}}
strategies: [single, {{half: {{stage: [{stages}]}}}}]
world_sizes: [2]
"""
    finished = run_in(tmp_path, suite)
    assert finished.code == 0, finished.errors
    single = finished.record("single")
    for stage in stages.split(", "):
        record = finished.record(f"half-zero{stage}")
        assert record["effective"]["loss_scale"] == 1024
        for column in ("loss", "grad_norm"):
            assert curve(record, column) == pytest.approx(curve(single, column), rel=2e-3), stage
    assert curve(single, "grad_norm") > [0.5], "the limit clips"
    assert curve(single)[-1] < curve(single)[0] - 0.2, "the loss falls, so that agreeing means something"


FLOATS = """
workload: {mlp: {hidden: 64, depth: 2}}
batch: {global_batch_size: 16}
world_sizes: [2]
precision: bf16
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
strategies: [ddp, {zero: {stage: [1, 3]}}]
"""


def test_a_batch_of_floats_is_computed_in_16_bits_under_every_engine(run_suite):
    done = run_suite(FLOATS)
    assert done.code == 0, done.errors
    losses = {label: done.record(label)["values"]["final_loss"] for label in ("ddp", "zero1", "zero3")}
    assert list(losses.values()) == pytest.approx([losses["ddp"]] * 3, rel=1e-2), losses
