"""Workloads: what they say by formula is what their module is and does; impossible options have a name."""

import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.base import Workload
from support.runs import MODELS
from support.small_workloads import SMALL, small, workload


@pytest.fixture(autouse=True)
def models_on_the_path(monkeypatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(MODELS))
    yield
    sys.modules.pop("small", None)


def random_batch(one: Workload, rows: int = 3) -> Any:
    import torch

    shape = one.shape
    if shape.kind == "features":
        return {
            "features": torch.rand(rows, shape.sample_length),
            "labels": torch.randint(shape.classes, (rows,)),
        }
    ids = torch.randint(shape.classes, (rows, shape.sample_length + 1))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("name", SMALL)
def test_a_fresh_module_guesses_and_learns(name):
    import torch

    torch.manual_seed(0)
    one = small(name)
    module, batch = one.module(), random_batch(one)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = one.loss(module, batch)
        assert (loss.shape, loss.dtype) == ((), torch.float32)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(one.shape.classes), rel=0.15)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL)
def test_the_layers_are_modules_within_the_module_and_no_two_share_a_parameter(name):
    one = small(name)
    module = one.module()
    layers = one.layers(module)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    assert len(layers) == 2
    assert {id(layer) for layer in layers} <= {id(part) for part in module.modules()}
    assert len(parameters) == len(set(map(id, parameters)))


@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_drawn_in_forward(name):
    one = small(name)
    module, batch = one.module().train(), random_batch(one)
    assert float(one.loss(module, batch).detach()) == float(one.loss(module, batch).detach())


@pytest.mark.parametrize("name", [name for name in SMALL if registry.load_plugin("workloads", name).on_meta])
def test_a_module_that_says_so_is_built_without_memory(name):
    import torch

    with torch.device("meta"):
        parameters = [*small(name).module().parameters()]
    assert parameters and all(parameter.is_meta for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformer", {}),
        ("transformer", {"preset": "gpt2-small"}),
        ("transformer", {"preset": "8b", "depth": 3}),
        ("transformer", {"tied": False, "kv_heads": 1}),
        ("mlp", {}),
        ("mlp", {"in_features": 784, "depth": 1, "hidden": 7, "classes": 3}),
    ],
)
def test_the_formula_counts_the_parameters_that_the_module_has(name, options):
    import torch

    one = workload(name, **options)
    with torch.device("meta"):
        module = one.module()
    assert one.parameters() == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["transformer", "huggingface"])
def test_no_token_sees_a_later_one(name):
    import torch

    one = small(name)
    module = one.module()
    ids = random_batch(one)["input_ids"]
    changed = ids.clone()
    changed[:, 50] = (changed[:, 50] + 1) % one.shape.classes
    with torch.no_grad():
        before, after = module(ids), module(changed)
    torch.testing.assert_close(before[:, :50], after[:, :50])
    assert not torch.equal(before[:, 50:], after[:, 50:])


def test_a_position_outside_of_the_window_is_not_seen_and_has_no_gradient():

    one = workload("transformer", depth=1, seq_len=12, attention="sliding_window", window=4)
    module, ids = one.module(), random_batch(one)["input_ids"]
    embedded: list[Any] = []
    module.embedding.register_forward_hook(lambda _module, _inputs, out: embedded.append(out))
    logits = module(ids)
    embedded[0].retain_grad()
    logits[:, 9].sum().backward()
    seen = embedded[0].grad.abs().sum((0, 2)) > 0
    assert seen.tolist() == [6 <= place <= 9 for place in range(12)]


@pytest.mark.parametrize("window", [128, 200])
def test_a_window_as_wide_as_the_row_is_full_attention(window):
    import torch

    full, wide = workload("transformer"), workload("transformer", attention="sliding_window", window=window)
    module, other, batch = full.module(), wide.module(), random_batch(full)
    other.load_state_dict(module.state_dict())
    for each in (module, other):
        full.loss(each, batch).backward()
    torch.testing.assert_close(other(batch["input_ids"]), module(batch["input_ids"]))
    for mine, theirs in zip(other.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


_LLAMA_NAMES = {
    "embedding": "embed_tokens",
    "blocks": "layers",
    "attention": "self_attn",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn": "mlp",
    "wq": "q_proj",
    "wk": "k_proj",
    "wv": "v_proj",
    "wo": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}


def llama_name(name: str) -> str:
    renamed = ".".join(_LLAMA_NAMES.get(part, part) for part in name.split("."))
    return "model.lm_head.weight" if name == "head.weight" else f"model.model.{renamed}"


def test_the_decoder_computes_what_transformers_computes_for_a_llama():
    import torch

    config = {**SMALL["huggingface"]["config"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    theirs = workload("huggingface", model_type="llama", config=config).module()
    ours = workload("transformer", **SMALL["transformer"], tied=False)
    module = ours.module()
    weights = theirs.state_dict()
    module.load_state_dict({name: weights[llama_name(name)] for name in module.state_dict()})
    ids = random_batch(ours)["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(module(ids), theirs(ids), atol=1e-5, rtol=1e-4)


def test_a_tied_head_is_the_embedding_and_an_untied_one_is_not():
    tied, untied = workload("transformer").module(), workload("transformer", tied=False).module()
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight


def test_the_residual_projections_are_drawn_smaller():
    import torch

    torch.manual_seed(0)
    block = workload("transformer").module().blocks[0]
    assert float(block.ffn.up.weight.std().detach()) == pytest.approx(0.02, rel=0.05)
    assert float(block.ffn.down.weight.std().detach()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)


def test_an_unknown_architecture_gets_the_nearest_names():
    problem = str(workload("huggingface", model_type="lama").problem())
    assert "model_type = 'lama'" in problem
    assert "llama" in problem


def test_a_key_that_the_configuration_lacks_is_refused():
    with pytest.raises(ValueError, match=r"config: llama has no num_layer;.*num_hidden_layers"):
        workload("huggingface", model_type="llama", config={"num_layer": 2}).module()


def test_a_huggingface_model_without_dropout_keeps_what_config_asks_for():
    config = {"n_embd": 32, "n_layer": 1, "n_head": 2}
    off = workload("huggingface", model_type="gpt2", config=config).module().model.config
    on = (
        workload("huggingface", model_type="gpt2", config={**config, "attn_pdrop": 0.5}).module().model.config
    )
    assert (off.attn_pdrop, off.resid_pdrop, off.eos_token_id) == (0.0, 0.0, None)
    assert (on.attn_pdrop, on.resid_pdrop) == (0.5, 0.0)


def test_a_huggingface_model_without_a_list_of_layers_says_what_to_do():
    from torch import nn

    one = small("huggingface")
    module = one.module()
    module.model.model.layers = nn.Sequential(*module.model.model.layers)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no nn.ModuleList.*layer_classes"):
        one.layers(module)


@pytest.mark.parametrize(
    ("options", "data", "inputs"),
    [
        ({"model": "small:Pictures", "kind": "images", "classes": 10, "image_size": 16}, "digits", 1),
        ({"model": "small:Pictures", "kind": "images", "classes": 10, "image_size": 16}, "synthetic", 1),
        ({"model": "small:Flat", "kind": "features", "classes": 10, "length": 768}, "synthetic", 1),
        ({"model": "small:Small", "kind": "masked_tokens", "length": 32, "classes": 256}, "synthetic", 1),
        ({"model": "small:Translator", "kind": "pairs", "length": 32, "target_length": 9}, "text", 2),
    ],
)
def test_a_user_model_of_every_kind_trains_on_data_that_come_with_distbench(options, data, inputs):
    import torch

    torch.manual_seed(0)
    one = workload("user", **options)
    source = registry.create_plugin("data", PluginChoice(data))
    assert (one.problem(), source.problem(one.shape)) == (None, None)
    rows = source.open(one.shape, 1, 8)(0, range(8))
    assert len(rows) == inputs + 1
    module, batch = one.module(), {name: torch.from_numpy(array) for name, array in rows.items()}
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-2), []
    for _ in range(5):
        loss = one.loss(module, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] < 2 * math.log(one.shape.classes)


OWN = """
import torch

class Block(torch.nn.Linear): pass

def make():
    return torch.nn.Sequential(Block(4, 4), Block(4, 3))

def flat():
    return torch.nn.Flatten(0)

def loss(module, batch):
    return module(batch["features"]).square().mean()

def vector(module, batch):
    return module(batch["features"])

number = 7
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Iterator[str]:
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


FEATURES: dict[str, Any] = {"kind": "features", "length": 4, "classes": 3}


def test_a_user_model_of_features_has_cross_entropy_unless_it_brings_its_own_loss(own):
    plain = workload("user", model=f"{own}:make", **FEATURES)
    with_loss = workload("user", model=f"{own}:make", loss_function=f"{own}:loss", **FEATURES)
    module, batch = plain.module(), random_batch(plain)
    assert float(with_loss.loss(module, batch).detach()) != float(plain.loss(module, batch).detach())


def test_the_layers_of_a_user_model_are_of_the_classes_that_it_names(own):
    one = workload("user", model=f"{own}:make", layer_classes=["Block"], **FEATURES)
    assert len(one.layers(one.module())) == 2
    absent = workload("user", model=f"{own}:make", layer_classes=["Layer"], **FEATURES)
    with pytest.raises(ValueError, match="has no Layer; it has Block, Sequential"):
        absent.layers(absent.module())


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("small:raises", "model = 'small:raises' raised KeyError: 'no such weights'"),
        ("small:no_module", "model = 'small:no_module' returned str; it must return an nn.Module"),
        (
            "small:nothing_there",
            "has no nothing_there; Allowed: Block",
        ),
        ("small:RANK", "model = 'small:RANK' is a int; it must be callable"),
    ],
)
def test_a_callable_that_gives_no_module_is_named(model, told):
    with pytest.raises(ValueError) as caught:
        workload("user", model=model).module()
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "flat"}, r"returned \(12,\), but must return logits of shape \(3, 3\)"),
        ({"model": "make", "loss_function": "vector"}, r"returned shape \(3, 3\); it must return a scalar"),
    ],
)
def test_a_loss_that_cannot_be_is_named(own, options, told):
    one = workload("user", **{key: f"{own}:{name}" for key, name in options.items()}, **FEATURES)
    with pytest.raises(ValueError, match=told):
        one.loss(one.module(), random_batch(one))


def test_heads_that_are_repeated_attend_as_grouped_ones_do():
    import torch

    from distbench.workloads._attention import repeat_kv

    query, key, value = (torch.randn(2, heads, 5, 4, dtype=torch.float64) for heads in (6, 2, 2))
    attend = partial(torch.nn.functional.scaled_dot_product_attention, query, is_causal=True)
    alone = attend(repeat_kv(key, query), repeat_kv(value, query))
    torch.testing.assert_close(alone, attend(key, value, enable_gqa=True))
