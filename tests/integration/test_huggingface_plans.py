"""Models of transformers, split inside and between their layers by the plans of their configurations."""

import json
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.system.machine import detect_machine
from distbench.workloads.base import Workload
from support.records import case
from support.runs import call_outside

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**CONFIG, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", CONFIG),
    "qwen3": ("qwen3", {**CONFIG, "head_dim": 16}),
    "mixtral": ("mixtral", {**CONFIG, "num_local_experts": 4}),
    "gemma2": ("gemma2", {**CONFIG, "head_dim": 16}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
}
SUITE = """
workload: {huggingface: {model_type: MODEL, seq_len: 32, config: CONFIG}}
batch: {global_batch_size: 8}
optimizer: {name: adamw, lr: 1.0e-3}
world_sizes: [2]
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
check: {steps: 3, perturbed: 4}
"""
SPLIT = "tp, {tp: {loss_parallel: true}}, {fsdp: {mesh: {tp: 2}}}"
AUTOTP = "{zero: {stage: 1, mesh: {tp: 2}}}"
CUT = "{pp: {micro_batches: 2}}, {zero: {stage: 1, mesh: {pp: 2}}}"


def suite_of(name: str, strategies: str) -> str:
    model_type, config = MODELS[name]
    text = SUITE.replace("MODEL", model_type).replace("CONFIG", json.dumps(config))
    return f"{text}strategies: [{strategies}]\n"


def made(name: str) -> Any:
    model_type, config = MODELS[name]
    options = {"model_type": model_type, "config": config, "seq_len": 32}
    one: Workload = registry.create_plugin("workloads", PluginChoice("huggingface", options))
    return one


@pytest.mark.parametrize(
    ("name", "strategies"),
    [
        ("llama", "tp, {pp: {micro_batches: 2}}"),
        pytest.param("llama", f"{SPLIT}, {AUTOTP}, {CUT}", marks=pytest.mark.deep),
        pytest.param("qwen2", f"{SPLIT}, {AUTOTP}, {CUT}", marks=pytest.mark.deep),
        pytest.param("qwen3", f"{SPLIT}, {CUT}", marks=pytest.mark.deep),
        pytest.param("mixtral", CUT, marks=pytest.mark.deep),
        # it scales what its embedding gives, and caps its logits
        pytest.param("gemma2", CUT, marks=pytest.mark.deep),
    ],
)
def test_a_model_that_its_plan_splits_is_the_same_training(run_suite, name, strategies):
    done = run_suite(suite_of(name, strategies))
    assert done.code == 0, done.errors
    assert len(done.verdicts) == strategies.count("tp") + strategies.count("pp")
    assert all(word.startswith("equivalent") for word in done.verdicts.values()), done.verdicts
    for each in done.cases.values():
        record = done.record(each["label"])
        assert record["status"] == "measured"
        assert record["values"]["model_flops_per_s_per_device"] > 0
    if name == "llama":
        # as torch counts the whole model, however it is split
        assert record["values"]["flops_per_sample"] == 32 * (6 * (73728 + 256 * 64) + 12 * 2 * 64 * 32)


def test_the_numbers_of_a_plan_are_those_of_the_model():
    one = made("llama")
    splits, stages = one.tensor_splits(), one.pipeline_stages()
    assert splits.divisible_sizes == {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
    }
    assert (splits.regions, splits.layers, splits.hidden_size, splits.tied) == (4, 2, 64, True)
    assert (splits.replicated_tensors, splits.replicated_parameters) == (5, 5 * 64)
    every = sum(parameter.numel() for parameter in one.module().parameters())
    assert (
        stages.embedding_parameters
        + sum(stages.layer_parameters)
        + stages.head_parameters
        - stages.tied_parameters
        == every
    )
    assert splits.problem(4) is not None
    assert "num_key_value_heads = 2 is not divisible by 4" in splits.problem(4)


@pytest.mark.parametrize(
    ("name", "unsplit", "uncut"),
    [
        ("gpt2", "GPT2Config of transformers has no base_model_tp_plan", "no base_model_pp_plan"),
        ("mixtral", "does not split model.model.layers.*.mlp.experts.gate_up_proj (packed_colwise)", ""),
        (
            "gemma2",
            "model.model.embed_tokens is embedding_rowwise in its plan, but is not a plain embedding",
            "",
        ),
    ],
)
def test_what_a_plan_does_not_say_or_distbench_can_not_do_is_refused(name, unsplit, uncut):
    one = made(name)
    assert unsplit in one.tensor_splits().unsupported_reason
    assert uncut in one.pipeline_stages().unsupported_reason
    assert bool(uncut) == bool(one.pipeline_stages().unsupported_reason)


def test_norms_of_heads_are_refused_where_deepspeed_does_not_sum_their_gradients():
    model_type, config = MODELS["qwen3"]
    options = {"model_type": model_type, "config": config, "seq_len": 32}

    def problem(name: str, **chosen: Any) -> str | None:
        strategy = PluginChoice(name, chosen)
        of = case(name, strategy=strategy, workload=PluginChoice("huggingface", options))
        found: str | None = registry.create_plugin("strategies", strategy).problem(of, detect_machine("cpu"))
        return found

    refused = problem("zero", stage=1, mesh={"tp": 2})
    assert refused is not None
    assert "model.model.layers.*.self_attn.k_norm" in refused
    assert "use tp, or fsdp: {mesh: {tp: 2}}" in refused
    assert problem("tp") is None


def test_routers_whose_loss_takes_all_layers_are_not_cut_into_stages():
    config = {**MODELS["mixtral"][1], "output_router_logits": True}
    one: Any = registry.create_plugin(
        "workloads", PluginChoice("huggingface", {"model_type": "mixtral", "config": config})
    )
    assert "the balancing loss needs the routers of all layers" in one.pipeline_stages().unsupported_reason


def test_a_plan_needs_no_torch_and_asks_once(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(suite_of("llama", "tp, {tp: {sequence_parallel: true}}, pp"))
    cache = {"DISTBENCH_CACHE": str(tmp_path / "cache")}
    planned = call_outside("plan", "--json", str(suite), **cache)
    assert planned.returncode == 0, planned.stderr
    (kept,) = (tmp_path / "cache" / "layouts").iterdir()
    made_at = kept.stat().st_mtime_ns
    again = call_outside("plan", "--json", str(suite), **cache)
    assert again.stdout == planned.stdout
    assert kept.stat().st_mtime_ns == made_at
    assert "sequence_parallel: transformers computes positions" in planned.stdout
