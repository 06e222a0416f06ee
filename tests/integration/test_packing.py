"""Packed rows: the loss and the gradients of the same rows alone, and a refusal where rows would mix."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.data.base import DataSource
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.workloads.base import Workload
from support.runs import MODELS

SUITE = """
workload: WORKLOAD
data: {user: {dataset: "datasets_of_users:Tokens", shift_labels: true, packing: true}}
batch: {global_batch_size: 4, micro_batch_size: 2}
measure: {warmup: 3, steps: 3, trials: 1, profile_steps: 0}
check: {steps: 2, perturbed: 4, fp64: false}
metrics: [steptime, throughput, utilisation]
world_sizes: [2]
strategies: STRATEGIES
"""
TINY = "{transformer: {preset: tiny, seq_len: 64}}"
MODELS_OF_TRANSFORMERS = {
    "llama": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "qwen2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(MODELS))


def batch_of(workload: Workload, **options: Any) -> dict[str, Any]:
    import torch

    choice = PluginChoice("user", {"dataset": "datasets_of_users:Tokens", "shift_labels": True, **options})
    source: DataSource = registry.create_plugin("data", choice)
    assert source.problem(workload.shape) is None
    rows = source.steps_per_epoch(1, workload.shape)
    arrays = source.open(workload.shape, 0, rows or 0)(0, range(rows or 0))
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def loss_and_gradients(workload: Workload, batch: dict[str, Any]) -> list[np.ndarray]:
    import torch

    torch.manual_seed(0)
    module = workload.module()
    loss = workload.loss(module, batch)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    grads = [each.grad.numpy() for each in module.parameters() if each.grad is not None]
    return [loss.detach().numpy(), *grads]


def huggingface(name: str, attention: str) -> Workload:
    options = {"model_type": name, "seq_len": 64, "config": MODELS_OF_TRANSFORMERS[name]}
    made: Any = registry.create_plugin("workloads", PluginChoice("huggingface", options))
    return Attending(made, attention)  # type: ignore[return-value]


def transformer(**options: Any) -> Workload:
    made: Workload = registry.create_plugin(
        "workloads", PluginChoice("transformer", {"preset": "tiny", "seq_len": 64, **options})
    )
    return made


class Attending:
    """A workload whose model has another implementation of attention."""

    def __init__(self, workload: Workload, attention: str) -> None:
        self._workload, self._attention = workload, attention

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def module(self) -> Any:
        module: Any = self._workload.module()
        module.model.set_attn_implementation(self._attention)
        return module


WORKLOADS = {
    "transformer": transformer,
    "window": partial(transformer, attention="sliding_window", window=9),
    "experts": partial(transformer, preset="moe-tiny"),
    **{
        f"{name}-{attention}": partial(huggingface, name, attention)
        for name in MODELS_OF_TRANSFORMERS
        for attention in ("sdpa", "eager")
    },
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_packed_rows_have_the_loss_and_gradients_of_the_same_rows_alone(name):
    workload = WORKLOADS[name]()
    packed, alone = batch_of(workload, packing=True), batch_of(workload, padding="longest")
    assert len(packed["input_ids"]) < len(alone["input_ids"]) / 2
    assert (
        (packed["labels"] != -100).sum()
        == (alone["labels"] != -100).sum()
        == sum(7 + index % 24 for index in range(64))
    )
    for one, other in zip(
        loss_and_gradients(workload, packed), loss_and_gradients(workload, alone), strict=True
    ):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-6)
    mixed = {name: array for name, array in packed.items() if name != "position_ids"}
    losses = [loss_and_gradients(workload, batch)[0] for batch in (packed, mixed)]
    assert abs(losses[0] - losses[1]) > 1e-5, "without it rows do mix"


def test_packed_rows_train_alike_and_count_documents(run_suite):
    done = run_suite(SUITE.replace("WORKLOAD", TINY).replace("STRATEGIES", "[ddp, {zero: {stage: 2}}]"))
    assert done.code == 0, done.errors
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    record = done.record("ddp")
    assert record["values"]["counted_token_share"] > 0.85
    assert {n for rank in record["samples"]["computed_tokens"] for n in rank} == {2 * 64}
    # attention between documents is not part of the model
    whole = registry.create_plugin(
        "workloads", PluginChoice("transformer", {"preset": "tiny", "seq_len": 64})
    )
    assert 0.9 * whole.flops_per_sample() < record["values"]["flops_per_sample"] < whole.flops_per_sample()


@pytest.mark.deep
def test_packed_rows_train_alike_under_every_strategy_that_takes_them(run_suite):
    grid = "[ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: 3}}, tp]"
    more = "include: [{strategy: ddp, engine: trainer}, {strategy: ddp, loader.workers: 1}]\n"
    done = run_suite(SUITE.replace("WORKLOAD", TINY).replace("STRATEGIES", grid) + more)
    assert done.code == 0, done.errors
    assert {each["status"] for each in done.cases.values()} == {"measured"}
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    experts = SUITE.replace("WORKLOAD", "{transformer: {preset: moe-tiny, seq_len: 64}}")
    parted = run_suite(experts.replace("STRATEGIES", "[ep]"))
    assert set(parted.verdicts.values()) <= {EQUIVALENT, ROUNDING}


OPT = "{model_type: opt, seq_len: 64, config: {hidden_size: 32, ffn_dim: 64, num_hidden_layers: 2, SIZES}}"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        # its mask is made of lengths alone
        ("opt", "lets tokens see other rows that share theirs"),
        ("packed:Mixing", "lets tokens see other rows that share theirs"),
        ("packed:Placed", "the loss of a row depends on its place in a packed one"),
        ("packed:MixingBehindZeroHead", "lets tokens see other rows that share theirs"),
        ("packed:MixingBehindZeroProjection", "lets tokens see other rows that share theirs"),
        ("packed:EachAlone", "does not depend on earlier tokens of the same row either"),
        ("small:Small", "forward of the model takes no position_ids"),
        ("packed:TakesTargets", "forward of the model takes no position_ids"),
    ],
)
def test_a_model_that_lets_rows_mix_is_refused_with_the_reason(run_suite, model, said):
    workload = f"{{user: {{model: '{model}', length: 64}}}}"
    if model == "opt":
        sizes = "num_attention_heads: 4, word_embed_proj_dim: 32"
        workload = f"{{huggingface: {OPT.replace('SIZES', sizes)}}}"
    text = SUITE.replace("WORKLOAD", workload).replace("STRATEGIES", "[ddp]")
    done = run_suite(text.replace("check: {steps: 2, perturbed: 4, fp64: false}\n", ""))
    (case,) = done.cases.values()
    assert case["status"] == "unsupported"
    assert said in case["reason"]


def test_an_error_of_the_model_is_no_refusal(run_suite):
    text = SUITE.replace("WORKLOAD", "{user: {model: 'packed:RaisesTypeError', length: 64}}")
    done = run_suite(text.replace("STRATEGIES", "[ddp]"))
    (case,) = done.cases.values()
    assert case["status"] == "crashed"
    assert "no cats in the bag" in str(done.record("ddp"))


@pytest.mark.parametrize(
    ("model", "strategies"),
    [
        ("Apart", "[ddp]"),
        # what engines keep gathered must be as it was
        ("ApartBehindZeroHead", "[ddp, fsdp, {zero: {stage: 3}}]"),
        ("zero_headed_decoder", "[ddp]"),
    ],
)
def test_a_model_that_keeps_rows_apart_is_measured(run_suite, model, strategies):
    text = SUITE.replace("WORKLOAD", f"{{user: {{model: 'packed:{model}', length: 64}}}}")
    done = run_suite(text.replace("STRATEGIES", strategies))
    assert {each["status"] for each in done.cases.values()} == {"measured"}
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
