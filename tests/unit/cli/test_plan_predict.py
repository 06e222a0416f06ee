"""``plan --predict``: step time and memory of cases that nobody has launched."""

import json

import pytest

from distbench.core.case import Batch, PluginChoice
from distbench.core.units import format_duration
from support.probes import PASS_S, probe_of
from support.records import case, measured, stored_run
from support.runs import call

SUITE = """
workload: {transformer: {preset: tiny}}
data: synthetic
batch: {global_batch_size: 8}
world_sizes: [2]
strategies: [ddp, fsdp, {pp: {schedule: ZBVZeroBubble}}, {zero: {stage: 2, offload_optimizer: cpu}}]
"""


@pytest.fixture
def suite(tmp_path):
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    return str(file)


@pytest.fixture
def runs(tmp_path):
    """Folder with a run that has probed the model of the suite on two GPUs."""
    tiny = PluginChoice("transformer", {"preset": "tiny"})
    of = case("ddp", workload=tiny, batch=Batch(8, 4, 1), device="cuda")
    stored_run(tmp_path / "runs", probe_of(of, environment={"gpu": "NVIDIA A100"}))
    return str(tmp_path / "runs")


HERE = ("--on", "h100-sxm:2", "--rates")
"""Two GPUs that need no torch here, with the rates of a run."""


def planned(suite: str, *options: str) -> dict:
    done = call("plan", suite, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_steps_are_predicted_from_a_probe(suite, runs):
    told = planned(suite, *HERE, "tiny", "--out", runs)
    found = {each["strategy"]: each["predicted"] for each in told["cases"]}
    ddp = found["ddp"]
    assert ddp["source"] == "probe"
    assert ddp["step_s_by_term"]["compute"] == pytest.approx(4 * PASS_S)
    assert ddp["step_s"]["value"] == pytest.approx(sum(ddp["step_s_by_term"].values()))
    assert ddp["step_s"]["low"] < ddp["step_s"]["value"] < ddp["step_s"]["high"]
    assert ddp["tokens_per_s"]["value"] == pytest.approx(8 * 128 / ddp["step_s"]["value"])
    assert ddp["peak_bytes"]["value"] == pytest.approx(sum(ddp["peak_bytes_by_kind"].values()))
    assert ddp["fits"] == "yes"
    assert found["fsdp"]["peak_bytes"]["value"] < ddp["peak_bytes"]["value"]
    assert found["pp-zbvzerobubble"]["step_s"] is None
    assert "halves of its backward pass" in found["pp-zbvzerobubble"]["step_reason"]
    offloaded = found["zero2+offload"]
    assert offloaded["step_lacks"] == "offload"
    assert offloaded["step_s"]["high"] is offloaded["tokens_per_s"]["low"] is None
    assert offloaded["tokens_per_s"]["high"] == pytest.approx(8 * 128 / offloaded["step_s"]["low"])


def test_the_time_of_a_run_follows_from_the_predictions(suite, runs):
    ddp = planned(suite, *HERE, "tiny", "--out", runs)["cases"][0]
    # from launch to the first step 2 s; 3 warm-up, 10 timed, 2 profiled, 1 checked and 1 counted step
    assert ddp["trial_s"] == pytest.approx(2 + 17 * ddp["predicted"]["step_s"]["value"])
    assert ddp["trial_note"] == "a prediction"


def test_the_table_says_what_is_known_and_why_the_rest_is_not(suite, runs):
    shown = call("plan", suite, *HERE, "tiny", "--out", runs)
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    for column in ("PEAK", "FITS", "STEP", "TOKENS/S"):
        assert column in text
    assert "STEP is from the rates that a probe measured: tiny-" in text
    assert "no step of pp-zbvzerobubble: the bubble" in text
    assert ", on 2 x NVIDIA A100, 1 node." in text
    low = planned(suite, *HERE, "tiny", "--out", runs)["cases"][-1]["predicted"]["step_s"]["low"]
    assert f"at least {format_duration(low)}" in text


def test_without_a_probe_three_ways_are_shown(suite, tmp_path):
    done = call("plan", suite, "--predict", "--out", str(tmp_path / "empty"))
    assert done.returncode == 2
    for way in ("distbench probe SUITE", "--rates RUN", "--on TYPE:NODESxGPUS"):
        assert way in done.stderr


def test_a_run_without_a_probe_is_refused(suite, tmp_path):
    run = stored_run(tmp_path / "runs", measured(case()))
    done = call("plan", suite, "--rates", str(run.folder), "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "the run has no probe; distbench probe SUITE measures one" in done.stderr


def test_another_model_has_no_rates(suite, runs):
    told = planned(suite, *HERE, "tiny", "--out", runs, "--set", "workload.transformer.dim=256")
    reasons = {each["predicted"]["step_reason"] for each in told["cases"]}
    assert reasons == {"the probe on 2 devices has another workload"}


def test_a_probe_of_one_node_is_not_taken_for_two(suite, runs):
    told = planned(suite, "--on", "h100-sxm:2x1", "--rates", "tiny", "--out", runs)
    reasons = {each["predicted"]["step_reason"] for each in told["cases"]}
    assert reasons == {"the probe on 2 devices ran on 1 node, and the case needs 2"}


def test_a_plan_without_any_prediction_has_the_reasons_alone(suite, runs):
    options = (
        "--set",
        "workload.transformer.window=8",
        "--set",
        "workload.transformer.attention=sliding_window",
    )
    shown = call("plan", suite, *HERE, "tiny", "--out", runs, *options)
    assert shown.returncode == 0, shown.stderr
    assert "\n\nSTEP is from the rates" in shown.stdout
    assert "no step of ddp" in shown.stdout


CLUSTER = """
workload: {transformer: {preset: 8b, seq_len: 4096}}
data: synthetic
batch: {per_device_batch_size: 8}
precision: bf16
cost: {per_device_hour: 2.0}
strategies: [fsdp, {zero: {stage: 1}}]
"""


def test_gpus_that_are_not_here_are_predicted_from_data_sheets(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    options = ("--predict", "--on", "h100-sxm:2x8", "--world-sizes", "16")
    fsdp, zero1 = planned(str(file), *options)["cases"]
    assert fsdp["predicted"]["source"] == "data sheet"
    # a step of 524,288 tokens, at 6 x 8e9 FLOPs each, at 20 to 70 % of 989 TFLOP/s
    assert 0.2 < fsdp["predicted"]["mfu"]["value"] < 0.7
    assert 2 < fsdp["predicted"]["step_s"]["value"] < 10
    assert fsdp["predicted"]["fits"] == "no"
    shown = " ".join(call("plan", str(file), *options).stdout.split())
    assert "does not fit: by formulas tensors need" in shown
    assert "a GPU of type h100-sxm has 80.0 GiB of memory" in shown
    assert fsdp["reason"].startswith("does not fit: by formulas")
    assert fsdp["predicted"]["cost_per_billion_tokens"] > 0
    assert "batch.micro_batch_size: 2 needs" in shown
    assert "COST" in shown and "MFU" in shown
    assert zero1["predicted"]["step_s"] is not None
