"""Formulas for the peak memory of a step, against a trace of the same cases with the torch that is here."""

import json

import pytest

from distbench.plan import make_plan
from distbench.prediction import MemoryPrediction, predict_memory
from distbench.suite import load_suite
from support.runs import call

SUITE = """
workload: {transformer: {dim: 64, depth: 3, heads: 4, kv_heads: 2, ffn_dim: 96, vocab_size: 512, seq_len: 64}}
data: synthetic
batch: {per_device_batch_size: 4}
precision: [fp32, bf16]
world_sizes: [2]
launcher: {local: {oversubscribe: true}}
strategies: [ddp, fsdp, {tp: {sequence_parallel: true}}]
"""


def test_formulas_and_a_trace_give_the_same_peaks(tmp_path):
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    done = call("plan", str(file), "--trace", "--json")
    assert done.returncode == 0, done.stderr
    traced = {each["case_id"]: each["peak_bytes"] for each in json.loads(done.stdout)["cases"]}
    cases = [item.case for item in make_plan(load_suite(file)).cases]
    assert len(cases) == len(traced) == 6
    for case in cases:
        prediction = predict_memory(case)
        assert isinstance(prediction, MemoryPrediction), prediction
        assert prediction.peak.value == pytest.approx(traced[case.id], rel=0.001), case.name
