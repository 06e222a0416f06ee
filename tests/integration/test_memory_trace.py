"""``plan --trace`` and ``limits.predicted_memory``: a step is traced before anything is launched."""

import json
from typing import Any

import pytest

from support.runs import QUICK, Finished, call, run_in

TINY = """
workload: {transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 64, vocab_size: 256, seq_len: 8}}
data: synthetic
batch: {per_device_batch_size: 2}
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
metrics: [memory]
strategies: [ddp, fsdp]
"""
PARAMETERS = 74_048


def planned(folder, text: str, *words: str) -> dict[str, dict[str, Any]]:
    """Cases of a plan of the suite *text*, by their labels and world sizes."""
    file = folder / "suite.yaml"
    file.write_text(text)
    done = call("plan", str(file), "--trace", "--json", *words)
    assert done.returncode == 0, done.stderr
    cases = {f"{each['strategy']}/{each['world_size']}": each for each in json.loads(done.stdout)["cases"]}
    assert cases
    return cases


def test_one_process_traces_a_thousand_ranks(tmp_path):
    cases = planned(tmp_path, TINY, "--on", "h100-sxm:128x8", "--world-sizes", "2,64,1024")
    few, more, most = (cases[f"fsdp/{ranks}"] for ranks in (2, 64, 1024))
    assert few["peak_bytes"] > few["states_bytes"] == pytest.approx(16 * PARAMETERS / 2)
    assert more["peak_bytes"] < few["peak_bytes"] - (few["states_bytes"] - more["states_bytes"]) / 2
    # matrices of 64 rows are padded to 1,024, for all ranks to have one
    assert most["peak_bytes"] > few["peak_bytes"]
    # CUDA's allocator gives blocks of 512 bytes
    assert {case["peak_bytes"] % 512 for case in cases.values()} == {0}
    # each of 1,024 replicas takes what each of 2 does
    assert cases["ddp/1024"]["peak_bytes"] == cases["ddp/2"]["peak_bytes"]


def test_what_exceeds_the_memory_of_a_gpu_does_not_fit(tmp_path):
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpu: ours\ngpus_per_node: 2\nmemory: 2MiB\ncompute_capability: 9.0\n")
    more = TINY.replace("seq_len: 8", "seq_len: 256")
    (tmp_path / "suite.yaml").write_text(more)
    words = ("plan", str(tmp_path / "suite.yaml"), "--on", str(machine), "--world-sizes", "2", "--trace")
    shown = call(*words)
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "CASE ID STATES TRAFFIC PEAK STATUS" in text
    assert "does not fit: the tensors" in text
    cases = planned(tmp_path, more, *words[2:-1])
    assert [case["status"] for case in cases.values()] == ["planned", "planned"]
    assert [case["fits"] for case in cases.values()] == [False, False]
    assert all(case["states_bytes"] < 2 << 20 < case["peak_bytes"] for case in cases.values())
    # and what does not exceed it is not said to fit
    assert {case["fits"] for case in planned(tmp_path, TINY, *words[2:-1]).values()} == {None}


UNTRACED = {
    "traced:ValueReader": "a trace has shapes and no values, but the step reads the values of a tensor",
    "traced:Refusing": "ValueError: this model refuses",
    "traced:Killed": "the process that traced it was killed by SIGKILL",
}


def test_a_model_that_can_not_be_traced_has_a_reason_and_costs_no_other_case_its_peak(tmp_path):
    models = "[" + ", ".join(UNTRACED) + ", small:Small]"
    text = QUICK.replace(
        '{user: {model: "small:Small", length: 32}}', f"{{user: {{model: {models}, length: 32}}}}"
    )
    (tmp_path / "suite.yaml").write_text(f"{text}strategies: [fsdp]\n")
    done = call("plan", str(tmp_path / "suite.yaml"), "--trace", "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert len(cases) == len(UNTRACED) + 1
    for case, (name, reason) in zip(cases, UNTRACED.items(), strict=False):
        assert case["peak_bytes"] is None, name
        assert reason in case["peak_note"]
    assert "traced.py:16" in cases[0]["peak_note"], "the line of the user's code"
    assert cases[-1]["peak_bytes"] > 0
    assert cases[-1]["peak_note"] == ""


def test_every_kind_of_step_that_is_not_traced_says_why(tmp_path):
    text = TINY.replace(
        "[ddp, fsdp]",
        "[zero: {stage: 1}, cp, {fsdp: {cpu_offload: true}}, {ddp: {gradient_as_bucket_view: true}}]",
    )
    cases = planned(tmp_path, text, "--world-sizes", "2")
    assert {case["peak_bytes"] for case in cases.values()} == {None}
    assert {name: case["peak_note"].partition(":")[0] for name, case in cases.items()} == {
        "zero1/2": "steps of zero are not traced; those of single, ddp, fsdp and tp are",
        "cp/2": "steps of cp are not traced; those of single, ddp, fsdp and tp are",
        "fsdp+offload/2": "cpu_offload",
        "ddp+view/2": "gradient_as_bucket_view",
    }
    compiled = planned(tmp_path, TINY, "--world-sizes", "2", "--set", "compile=true", "--only", "fsdp*")
    assert "compiled code is not traced" in compiled["fsdp/2"]["peak_note"]
    scaled = planned(tmp_path, TINY, "--world-sizes", "2", "--set", "precision=fp16", "--only", "fsdp*")
    assert "loss scale" in scaled["fsdp/2"]["peak_note"]


@pytest.mark.parametrize(
    "layout",
    ["padding: max_length", "padding: longest", pytest.param("packing: true", marks=pytest.mark.deep)],
)
def test_rows_of_unequal_length_are_traced_where_they_are_filled_up(tmp_path, layout):
    data = f"{{user: {{dataset: 'datasets_of_users:Unequal', {layout}, shift_labels: true}}}}"
    text = TINY.replace("synthetic", data).replace("seq_len: 8", "seq_len: 32")
    cases = planned(tmp_path, text, "--world-sizes", "2")
    assert len(cases) == 2
    for case in cases.values():
        if layout == "padding: longest":
            assert case["peak_bytes"] is None
            assert "the lengths of the rows decide" in case["peak_note"]
        else:
            assert case["peak_bytes"] > 0, case["peak_note"]


def test_a_case_that_can_not_fit_is_not_launched(tmp_path):
    # terabytes of logits; the other cases need two megabytes
    text = TINY.replace("[ddp, fsdp]", "[ddp, fsdp, {zero: {stage: 1}}]") + (
        "world_sizes: [2]\nlimits: {predicted_memory: 0.9}\nlauncher: {kept: {oversubscribe: true}}\n"
        "include:\n"
        "  - strategy: ddp\n    world_size: 2\n    workload.transformer.seq_len: 512\n"
        "    batch: {per_device_batch_size: 4000000}\n"
    )
    run = run_in(tmp_path, text)
    assert "limits.predicted_memory: no peak of zero1: steps of zero are not traced" in run.errors
    records = [Finished.read(file) for file in run.folder.glob("trials/*/0/record.json")]
    assert sorted((each["case"]["label"], each["status"]) for each in records) == [
        ("ddp", "measured"),
        ("ddp", "unsupported"),
        ("fsdp", "measured"),
        ("zero1", "measured"),
    ]
    (reason,) = {each["reason"] for each in records} - {""}
    assert reason.startswith("does not fit: the tensors of a step need ")
    assert "TiB on each of 2 ranks by a trace, and this machine has " in reason
    assert " by limits.predicted_memory; use a smaller batch.micro_batch_size" in reason
    # the plan says the same before
    shown = json.loads(call("plan", str(run.folder / "suite.yaml"), "--json").stdout)["cases"]
    assert sorted((each["status"], each["reason"]) for each in shown) == [
        *[("planned", "")] * 3,
        ("unsupported", reason),
    ]
    # and nothing is left to do
    again = call("run", "--resume", str(run.folder), "--quiet")
    assert again.returncode == run.code, again.stderr
    assert len(list(run.folder.glob("trials/*/*/record.json"))) == len(records)


@pytest.mark.parametrize("value", ["0", "1.1", "-1", "most", "true"])
def test_a_share_of_memory_is_above_0_and_at_most_1(tmp_path, value):
    file = tmp_path / "suite.yaml"
    file.write_text(f"{TINY}limits: {{predicted_memory: {value}}}\n")
    done = call("plan", str(file))
    assert done.returncode == 2
    assert f"suite.yaml:8: limits.predicted_memory = {value}" in done.stderr.replace("'", "")
