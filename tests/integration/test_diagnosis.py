"""What limits a step, over real ranks: each planted cause has its diagnosis, and an honest run none."""

import json
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_limits import StepLimit, step_limit
from distbench.record.run_folder import Run
from support.runs import Finished, call, run_in
from support.suites import SuiteText

SUITE = """
workload: {mlp: {hidden: 512, depth: 3}}
batch: {global_batch_size: 256}
measure: {warmup: 1, steps: 3, trials: 1, repeat_noisy: 0, profile_steps: 4}
metrics: [steptime, throughput, communication, profile]
world_sizes: [2]
"""
DECODER = SuiteText("""
workload:
  transformer: {dim: 128, depth: 6, heads: 4, kv_heads: 4, ffn_dim: 512, vocab_size: 256, seq_len: 128}
data: synthetic
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 2, trials: 1, repeat_noisy: 0, profile_steps: 4}
metrics: [steptime, throughput, communication, utilisation, profile]
world_sizes: [2]
""")
PIPELINE = DECODER + "strategies: [{pp: {micro_batches: 2}}]\n"
# on one rank, as other processes that hinder one of two make ranks uneven
CHECKPOINTED = DECODER.replace("[2]", "[1]") + "strategies: [single]\nactivation_checkpointing: full\n"
SMALLER = (
    CHECKPOINTED.replace("depth: 6", "depth: 4")
    .replace("seq_len: 128", "seq_len: 64")
    .replace("size: 8}", "size: 4}")
    .replace("profile_steps: 4", "profile_steps: 2")
)
HINDERED = "strategies: [{hindered: {by: [rank, optimizer, host, communication], share: SHARE}}]\n"
CAUSES = {
    "hindered-rank": "imbalance between ranks",
    "hindered-optimizer": "optimizer-bound",
    "hindered-host": "host-bound",
    "hindered-communication": "communication-bound",
}
LARGER = """
workload:
  transformer: {dim: 192, depth: 4, heads: 6, kv_heads: 6, ffn_dim: 768, vocab_size: 2048, seq_len: 128}
data: text
batch: {global_batch_size: 16}
measure: {warmup: 3, steps: 3, trials: 1, repeat_noisy: 0, profile_steps: 2}
metrics: [steptime, throughput, communication, utilisation, profile]
world_sizes: [2]
"""
HONEST = """
strategies:
  - ddp: {sharded_optimizer: [false, true]}
  - fsdp: {sharding: [full, grad_op]}
  - fsdp: {version: 1}
  - zero: {stage: [1, 2, 3]}
  - tp
  - cp
axes: {workload.transformer.depth: [2, 4]}
"""


def diagnoses(finished: Finished) -> dict[str, StepLimit | str]:
    """Diagnosis of each case by its label."""
    assert finished.code == 0, finished.errors
    cases = RunAnalysis.read(Run(finished.folder)).cases
    return {row.case.label: step_limit(row) for row in cases}


def words(finished: Finished) -> dict[str, str]:
    found = diagnoses(finished)
    assert found
    return {label: limit.word if isinstance(limit, StepLimit) else limit for label, limit in found.items()}


def test_each_cause_in_a_strategy_has_its_diagnosis(tmp_path):
    assert words(run_in(tmp_path, SUITE + HINDERED.replace("SHARE", "0.9"))) == CAUSES


def of_lengths(dataset: str, strategies: str) -> str:
    """A suite whose model takes its time for tokens, with rows of unequal length."""
    options = "shift_labels: true, padding: longest, shuffle: false"
    data = f"{{user: {{dataset: 'datasets_of_users:{dataset}', {options}}}}}"
    sizes = DECODER.replace("data: synthetic", f"data: {data}").replace("seq_len: 128", "seq_len: 256")
    return sizes.replace("measure: {", "limits: {step: 60}\nmeasure: {") + strategies


def test_an_imbalance_by_the_lengths_of_rows_is_named_so(tmp_path):
    (found,) = diagnoses(run_in(tmp_path, of_lengths("longer_halves", "strategies: [ddp]\n"))).values()
    assert isinstance(found, StepLimit)
    assert found.word == "imbalance between ranks (lengths of rows)"
    assert "group_by_length: true" in found.advice
    # one rank has rows of 240 tokens, and the other of 60
    assert "the rank with most tokens in a step has 1.60x the mean" in found.sentence


def test_an_imbalance_by_a_slow_rank_is_not_taken_for_one_of_lengths(tmp_path):
    slow = HINDERED.replace("[rank, optimizer, host, communication]", "rank").replace("SHARE", "0.8")
    assert words(run_in(tmp_path, of_lengths("many_tokens", slow))) == {
        "hindered-rank": "imbalance between ranks"
    }


@pytest.mark.deep
@pytest.mark.parametrize("share", ["0.25", "0.4"])
def test_a_cause_that_costs_a_quarter_of_the_step_has_its_diagnosis(share, tmp_path):
    assert words(run_in(tmp_path, LARGER + HINDERED.replace("SHARE", share))) == CAUSES


@pytest.mark.deep
def test_twenty_honest_cases_have_no_diagnosis_but_what_their_strategy_costs(tmp_path):
    """What tp moves between its layers is exposed: communication is its honest limit.

    On a machine that others use, the diagnosis of a case is noise, and no fault of its strategy.
    """
    finished = run_in(tmp_path, LARGER.replace("profile]", "profile, telemetry]") + HONEST)
    assert finished.code == 0, finished.errors
    cases = RunAnalysis.read(Run(finished.folder)).cases
    assert len(cases) == 20
    found = {row.case.name: step_limit(row) for row in cases}
    said = {name: limit.word if isinstance(limit, StepLimit) else limit for name, limit in found.items()}
    allowed = ("compute-bound", "communication-bound", "noise")
    assert {name: word for name, word in said.items() if word not in allowed} == {}
    assert {name for name, word in said.items() if word == "communication-bound"} <= {
        name for name in said if name.startswith("tp/")
    }


@pytest.mark.deep
def test_tiny_buckets_are_named_and_those_of_the_default_size_are_not(tmp_path):
    """Each of 48 layers has a bucket of its own."""
    strategies = "strategies: [{ddp: {bucket_cap_mb: [25, 0.001]}}]\n"
    suite = SUITE.replace("{hidden: 512, depth: 3}", "{hidden: 128, depth: 48}")
    found = words(run_in(tmp_path, suite + strategies))
    assert found["ddp"] != "communication-bound (latency)"
    assert found["ddp+0.001mb"] == "communication-bound (latency)"


@pytest.mark.deep
def test_an_honest_run_on_a_quiet_machine_computes(tmp_path):
    honest = SUITE.replace("size: 256", "size: 2048") + "strategies: [ddp]\n"
    assert "2048" in honest
    assert words(run_in(tmp_path, honest)) == {"ddp": "compute-bound"}


def test_a_slow_data_source_has_its_diagnosis(tmp_path):
    assert words(run_in(tmp_path, SUITE + "data: tardy\nstrategies: [ddp]\n")) == {"ddp": "data-bound"}


@pytest.mark.parametrize(
    ("suite", "word"),
    [
        pytest.param(PIPELINE, "pipeline bubble", id="bubble"),
        # of a smaller model, its changes are tried below
        pytest.param(CHECKPOINTED, "memory-bound (recomputation)", marks=pytest.mark.deep, id="memory"),
    ],
)
def test_waiting_stages_and_recomputed_activations_have_their_diagnosis(tmp_path, suite, word):
    assert [*words(run_in(tmp_path, suite)).values()] == [word]


def test_advice_is_measured_beside_the_case_and_its_effect_is_told(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{SMALLER}launcher: kept\n")
    done = call("run", str(suite), "--out", str(tmp_path / "out"), "--try", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [each["strategy"] for each in results["cases"]] == ["single"]
    advice = results["advice"]
    assert (advice["limit"], advice["reason"]) == ("recomputation", None)
    tried = {(each["key"], each["value"]): each for each in advice["changes"]}
    assert [*tried] == [("activation_checkpointing", policy) for policy in ("selective", "none")]
    for each in tried.values():
        assert 0 < each["speedup_low"] < each["speedup"] < each["speedup_high"]
        assert each["helped"] == (each["speedup_low"] > 1)
    changed = RunAnalysis.read(Run(Path(advice["run"])))
    assert changed.info.state == "finished"
    assert [(row.case.activation_checkpointing, row.trials) for row in changed.cases] == [
        ("full", 3),
        ("selective", 3),
        ("none", 3),
    ]
    assert changed.cases[0].case.id == results["cases"][0]["case_id"]
    assert "trying 2 changes of single/ws1/mb4/fp32 (memory-bound (recomputation))" in done.stderr


@pytest.mark.deep
def test_a_case_that_waits_for_its_data_is_tried_with_workers(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE + "data: tardy\nstrategies: [ddp]\nlauncher: kept\n")
    done = call("run", str(suite), "--out", str(tmp_path / "out"), "--try", "--json")
    assert done.returncode == 0, done.stderr
    assert "trying 1 change of ddp/ws2/mb128/fp32 (data-bound)" in done.stderr
    advice = json.loads(done.stdout)["advice"]
    changed = RunAnalysis.read(Run(Path(advice["run"])))
    assert [row.case.loader.workers for row in changed.cases] == [None, 2]
    assert all(row.measured for row in changed.cases)


def test_where_no_setting_helps_nothing_is_tried_and_the_reason_is_told(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE + "strategies: [{hindered: {by: rank, share: 0.9}}]\nlauncher: kept\n")
    done = call("run", str(suite), "--out", str(tmp_path / "out"), "--try")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    why = "hindered-rank/ws2/mb128/fp32 is imbalance between ranks, and no setting that keeps its work"
    assert f"Nothing was tried: {why}" in said
    assert len([*(tmp_path / "out").iterdir()]) == 1
