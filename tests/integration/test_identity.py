"""A user's module keeps its identity: class, attributes, signature and names, in every precision."""

import inspect
from typing import Any

import pytest

from support.runs import MODELS

SUITE = """
workload: {user: {model: "particular:Particular", length: 16}}
batch: {global_batch_size: 8}
world_sizes: [2]
precision: bf16
activation_checkpointing: full
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
check: {steps: 2, perturbed: 4, fp64: false}
"""


@pytest.mark.parametrize(
    ("strategies", "changes"),
    [
        ("ddp, fsdp, {zero: {stage: 3}}", ""),
        pytest.param("single, ddp, fsdp, {zero: {stage: [1, 2, 3]}}", "", marks=pytest.mark.deep),
        pytest.param("single, ddp, fsdp", "activation_checkpointing: selective", marks=pytest.mark.deep),
        pytest.param(
            "single, ddp, fsdp, {zero: {stage: [1, 2, 3]}}", "precision: fp32", marks=pytest.mark.deep
        ),
    ],
)
def test_a_model_that_asks_its_layers_for_their_class_trains_as_its_reference(run_suite, strategies, changes):
    key, _, value = changes.partition(": ")
    arguments = ["--set", f"{key}={value}"] if key else []
    done = run_suite(f"{SUITE}strategies: [{strategies}]\n", *arguments)
    assert len(done.cases) == len(strategies.split(",")), done.errors
    for name, case in done.cases.items():
        assert case["status"] == "measured", f"{name}: {case['reason']}"
        assert case["equivalence"]["verdict"] in ("equivalent", "equivalent within rounding"), name
        assert done.record(case["label"])["effective"]["checkpointed_layers"] == 2


def test_a_module_that_computes_in_16_bits_and_recomputes_is_the_same_object_to_all_others(monkeypatch):
    monkeypatch.syspath_prepend(MODELS)
    import torch
    from particular import Layer

    from distbench.strategies.torch_engine.forwards import compute_in
    from distbench.strategies.torch_engine.modules import checkpoint_layers, describe_checkpointing
    from support.records import case

    torch.manual_seed(0)
    layer = Layer(0.5)
    names, signature = list(layer.state_dict()), inspect.signature(layer.forward)
    x, more = torch.randn(2, 16), {"mode": "plain", "bias": [torch.zeros(16)]}
    exact = layer(x, scale=2.0, more=more)["x"]
    compute_in(layer, torch.bfloat16)
    checkpoint_layers(case("ddp", activation_checkpointing="full"), [layer])

    assert type(layer) is Layer and layer.gain == 0.5
    assert list(layer.state_dict()) == names == [name for name, _ in layer.named_parameters()]
    assert inspect.signature(layer.forward) == signature
    out = layer(x, scale=2.0, more=more)["x"]
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.float(), exact, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    parameters = dict(layer.named_parameters())
    assert (
        {p.dtype for p in parameters.values()}
        == {p.grad.dtype for p in parameters.values()}
        == {torch.float32}
    )
    assert all(isinstance(p, torch.nn.Parameter) for p in parameters.values())
    assert describe_checkpointing(layer) == {"activation_checkpointing": "full", "checkpointed_layers": 1}


def test_a_module_that_raises_has_its_own_parameters_again(monkeypatch):
    monkeypatch.syspath_prepend(MODELS)
    import torch
    from particular import Layer

    from distbench.strategies.torch_engine.forwards import compute_in

    layer = Layer(0.5)
    compute_in(layer, torch.bfloat16)
    with pytest.raises(KeyError, match="bias"):
        layer(torch.randn(2, 16), more={})
    assert {p.dtype for p in layer.parameters()} == {torch.float32}


def test_a_weight_of_a_layer_and_of_the_whole_is_cast_in_both():
    import torch
    from torch import nn

    from distbench.strategies.torch_engine.forwards import compute_in

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    for module in (model[0], model):
        compute_in(module, torch.bfloat16)
    out = model(torch.ones(1, 4))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert model[1].weight.grad is model[0].weight.grad is not None


def test_a_copy_that_data_parallel_makes_of_a_recomputing_layer_computes_with_its_own_parameters():
    import torch
    from torch import nn

    from distbench.strategies.torch_engine.modules import checkpoint_layers
    from support.records import case

    layer = nn.PReLU(2)
    checkpoint_layers(case("dp", activation_checkpointing="full"), [layer])
    # as torch.nn.parallel.replicate does it, which wants GPUs
    replica: Any = layer._replicate_for_data_parallel()
    replica.weight = torch.full((2,), 3.0)
    assert torch.equal(replica(torch.full((1, 2), -1.0)), torch.full((1, 2), -3.0))
    assert torch.equal(layer(torch.full((1, 2), -1.0)), torch.full((1, 2), -0.25))
