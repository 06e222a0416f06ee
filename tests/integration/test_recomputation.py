"""Activation checkpointing: the same training from less memory, in every engine."""

import pytest

# long rows in a narrow model: activations are most of its memory
SUITE = """
workload: {transformer: {dim: 64, ffn_dim: 256, depth: 4, heads: 4, kv_heads: 4, seq_len: 256}}
data: text
batch: {global_batch_size: 4}
world_sizes: [2]
activation_checkpointing: [none, selective, full]
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, memory, convergence]
"""
KINDS = ("none", "selective", "full")
EVERY = "ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 3]}}"


@pytest.mark.parametrize(
    ("strategies", "precision"),
    [
        ("ddp, {zero: {stage: 3}}", "fp32"),
        pytest.param(
            "ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: [0, 3]}}", "bf16", marks=pytest.mark.deep
        ),
    ],
)
def test_selective_recomputes_less_than_full_and_keeps_less_than_none(run_suite, strategies, precision):
    done = run_suite(f"{SUITE}strategies: [{strategies}]\nprecision: {precision}\n")
    assert done.code == 0, done.errors
    for label in {case["label"] for case in done.cases.values()}:
        records = {kind: done.record(f"{label}-ws2-*-{kind}") for kind in KINDS}
        for kind, record in records.items():
            assert record["status"] == "measured", record["reason"]
            assert record["effective"]["activation_checkpointing"] == kind
            assert record["effective"]["checkpointed_layers"] == (0 if kind == "none" else 4)
            assert record["values"]["final_loss"] == records["none"]["values"]["final_loss"], label
        none, selective, full = (each["values"]["memory_peak"] for each in records.values())
        assert none > 1.2 * selective, label
        assert selective > 1.2 * full, label
