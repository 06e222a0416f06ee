"""Workloads: what they say by formula is what their module is and does; impossible options have a name."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import MODELS

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.suite.sections import check_section
from distbench.workloads.base import Workload

SMALL: dict[str, dict[str, Any]] = {
    "huggingface": {
        "model_type": "llama",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
        },
    },
    "mlp": {"hidden": 16},
    "transformer": {"dim": 32, "depth": 2, "ffn_dim": 48},
    "user": {"model": "small:Small"},
}


def workload(name: str, **options: Any) -> Workload:
    made: Workload = registry.create_plugin("workloads", PluginChoice(name, options))
    return made


def small(name: str) -> Workload:
    return workload(name, **SMALL[name])


@pytest.fixture(autouse=True)
def models_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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


def test_every_workload_has_its_options_in_these_tests() -> None:
    assert sorted(SMALL) == registry.plugin_names("workloads")


@pytest.mark.parametrize("name", SMALL)
def test_possible_options_have_no_problem_and_make_a_choice_that_json_keeps(name: str) -> None:
    one = small(name)
    assert one.problem() is None
    assert one.tokens_per_sample == (one.shape.sample_length if one.shape.kind == "tokens" else 1)
    assert registry.create_plugin("workloads", PluginChoice(name, json.loads(json.dumps(SMALL[name])))) == one


@pytest.mark.train
@pytest.mark.parametrize("name", SMALL)
def test_a_fresh_module_guesses_and_learns(name: str) -> None:
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


@pytest.mark.train
@pytest.mark.parametrize("name", SMALL)
def test_the_layers_are_modules_within_the_module_and_no_two_share_a_parameter(name: str) -> None:
    one = small(name)
    module = one.module()
    layers = one.layers(module)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    assert len(layers) == 2
    assert {id(layer) for layer in layers} <= {id(part) for part in module.modules()}
    assert len(parameters) == len(set(map(id, parameters)))


@pytest.mark.train
@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_drawn_in_forward(name: str) -> None:
    one = small(name)
    module, batch = one.module().train(), random_batch(one)
    assert float(one.loss(module, batch).detach()) == float(one.loss(module, batch).detach())


@pytest.mark.train
@pytest.mark.parametrize("name", [name for name in SMALL if registry.load_plugin("workloads", name).on_meta])
def test_a_module_that_says_so_is_built_without_memory(name: str) -> None:
    import torch

    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in small(name).module().parameters())


@pytest.mark.train
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
def test_the_formula_counts_the_parameters_that_the_module_has(name: str, options: dict[str, Any]) -> None:
    import torch

    one = workload(name, **options)
    with torch.device("meta"):
        module = one.module()
    assert one.parameters() == sum(parameter.numel() for parameter in module.parameters())


# as the model cards' checkpoints count
@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("1b", 1_235_814_400), ("3b", 3_212_749_824), ("8b", 8_030_261_248), ("70b", 70_553_706_496)],
)
def test_the_presets_are_as_large_as_llama(preset: str, parameters: int) -> None:
    assert workload("transformer", preset=preset).parameters() == parameters


def test_the_small_presets_are_as_large_as_their_names_say() -> None:
    assert workload("transformer").parameters() == pytest.approx(1e6, rel=0.05)
    assert workload("transformer", preset="gpt2-small").parameters() == pytest.approx(124e6, rel=0.01)


@pytest.mark.parametrize("tied", [True, False])
def test_the_flops_of_a_decoder_are_those_counted_by_hand(tied: bool) -> None:
    one = workload(
        "transformer", dim=8, depth=3, heads=2, kv_heads=1, ffn_dim=10, vocab_size=20, tied=tied, seq_len=5
    )
    block = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8 + 3 * 8 * 10 + 2 * 8
    # a lookup in an embedding of its own is no product; a tied embedding is the head's matrix
    used = 3 * block + 8 + 20 * 8
    assert one.flops_per_sample() == 5 * (6 * used + 12 * 3 * 2 * 4 * 5)


def test_a_window_takes_the_flops_of_what_it_sees() -> None:
    sizes = {"dim": 8, "depth": 3, "heads": 2, "seq_len": 40}
    full = workload("transformer", **sizes)
    cut = workload("transformer", **sizes, attention="sliding_window", window=10)
    wide = workload("transformer", **sizes, attention="sliding_window", window=64)
    attended = 12 * 3 * 8 * 40
    assert full.flops_per_sample() - cut.flops_per_sample() == attended * (40 - 10)
    assert wide.flops_per_sample() == full.flops_per_sample()
    assert full.recomputed_flops_per_sample() - cut.recomputed_flops_per_sample() == attended * 30 // 3


def test_a_window_remains_the_same_part_of_a_shorter_row() -> None:
    cut = workload("transformer", seq_len=512, attention="sliding_window", window=128)
    assert [sizes["window"] * 4 for sizes in cut.reduced_options()] == [
        sizes["seq_len"] for sizes in cut.reduced_options()
    ]
    assert all("window" not in sizes for sizes in workload("transformer", seq_len=512).reduced_options())


def test_an_mlp_takes_six_flops_a_weight() -> None:
    one = workload("mlp", in_features=784, hidden=1024, depth=2, classes=10)
    assert one.flops_per_sample() == 6 * (784 * 1024 + 1024 * 1024 + 1024 * 10)


@pytest.mark.train
@pytest.mark.parametrize("name", ["transformer", "huggingface"])
def test_no_token_sees_a_later_one(name: str) -> None:
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


@pytest.mark.train
def test_a_position_outside_of_the_window_is_not_seen_and_has_no_gradient() -> None:

    one = workload("transformer", depth=1, seq_len=12, attention="sliding_window", window=4)
    module, ids = one.module(), random_batch(one)["input_ids"]
    embedded: list[Any] = []
    module.embedding.register_forward_hook(lambda _module, _inputs, out: embedded.append(out))
    logits = module(ids)
    embedded[0].retain_grad()
    logits[:, 9].sum().backward()
    seen = embedded[0].grad.abs().sum((0, 2)) > 0
    assert seen.tolist() == [6 <= place <= 9 for place in range(12)]


@pytest.mark.train
@pytest.mark.parametrize("window", [128, 200])
def test_a_window_as_wide_as_the_row_is_full_attention(window: int) -> None:
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


@pytest.mark.train
def test_the_decoder_computes_what_transformers_computes_for_a_llama() -> None:
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


@pytest.mark.train
def test_a_tied_head_is_the_embedding_and_an_untied_one_is_not() -> None:
    tied, untied = workload("transformer").module(), workload("transformer", tied=False).module()
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight


@pytest.mark.train
def test_the_residual_projections_are_drawn_smaller() -> None:
    import torch

    torch.manual_seed(0)
    block = workload("transformer").module().blocks[0]
    assert float(block.ffn.up.weight.std().detach()) == pytest.approx(0.02, rel=0.05)
    assert float(block.ffn.down.weight.std().detach()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 3}, "heads = 3 does not divide dim = 128"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"dim": 36}, "heads = 4 cuts dim = 36 into heads of width 9"),
        ({"attention": "sliding_window"}, "sliding_window needs a window; set window: 32, say"),
        ({"window": 8}, "window = 8 is of sliding_window alone; set attention: sliding_window"),
    ],
)
def test_an_impossible_decoder_names_the_option_and_its_value(options: dict[str, Any], told: str) -> None:
    assert told in str(workload("transformer", **options).problem())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("huggingface", {"vocab_size": 0, "seq_len": 0}),
        ("mlp", {"in_features": 0, "hidden": 0, "depth": 0, "classes": 0}),
        ("transformer", {"dim": 0, "depth": -1, "heads": 0, "kv_heads": 0, "ffn_dim": 0, "vocab_size": 0}),
        ("transformer", {"norm_eps": -1e-5, "rope_theta": math.nan, "seq_len": 0}),
        ("user", {"length": 0, "classes": 0}),
    ],
)
def test_every_size_that_is_impossible_is_told_at_once(name: str, options: dict[str, Any]) -> None:
    _, findings = check_section(registry.load_plugin("workloads", name), SMALL[name] | options, ())
    assert {finding.path[0] for finding in findings} == options.keys()
    assert all("must be a" in finding.message for finding in findings)


@pytest.mark.train
def test_an_unknown_architecture_gets_the_nearest_names() -> None:
    problem = str(workload("huggingface", model_type="lama").problem())
    assert "model_type = 'lama'" in problem
    assert "llama" in problem


def test_the_vocabulary_of_huggingface_is_no_part_of_its_config() -> None:
    one = workload("huggingface", model_type="llama", config={"vocab_size": 99})
    assert "config: set vocab_size" in str(one.problem())


@pytest.mark.train
def test_a_key_that_the_configuration_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config: llama has no num_layer;.*num_hidden_layers"):
        workload("huggingface", model_type="llama", config={"num_layer": 2}).module()


@pytest.mark.train
def test_a_huggingface_model_without_dropout_keeps_what_config_asks_for() -> None:
    config = {"n_embd": 32, "n_layer": 1, "n_head": 2}
    off = workload("huggingface", model_type="gpt2", config=config).module().model.config
    on = (
        workload("huggingface", model_type="gpt2", config={**config, "attn_pdrop": 0.5}).module().model.config
    )
    assert (off.attn_pdrop, off.resid_pdrop, off.eos_token_id) == (0.0, 0.0, None)
    assert (on.attn_pdrop, on.resid_pdrop) == (0.5, 0.0)


@pytest.mark.train
def test_a_huggingface_model_without_a_list_of_layers_says_what_to_do() -> None:
    from torch import nn

    one = small("huggingface")
    module = one.module()
    module.model.model.layers = nn.Sequential(*module.model.model.layers)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no nn.ModuleList.*layer_classes"):
        one.layers(module)


@pytest.mark.train
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
def test_a_user_model_of_every_kind_trains_on_data_that_come_with_distbench(
    options: dict[str, Any], data: str, inputs: int
) -> None:
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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "small"}, "model = 'small': must be of the form package.module:callable"),
        ({"model": "small.py:Small"}, "no module small.py"),
        ({"model": "no_such_module:f"}, "no module no_such_module"),
        ({"model": "json.no_such:f"}, "no module json.no_such"),
        ({"model": "small:Small", "loss_function": "nowhere:f"}, "loss_function = 'nowhere:f'"),
        ({"model": "small:Small", "image_size": 8}, "image_size is of kind: images alone, and kind = tokens"),
        ({"model": "small:Small", "kind": "images", "length": 9}, "length is not of kind: images"),
    ],
)
def test_impossible_options_of_a_user_model_have_a_name(options: dict[str, Any], told: str) -> None:
    assert told in str(workload("user", **options).problem())


def test_looking_for_a_user_model_runs_none_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "loud"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "model.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert workload("user", model="loud.model:make").problem() is None
    assert "no module loud.other" in str(workload("user", model="loud.other:make").problem())


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
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


FEATURES: dict[str, Any] = {"kind": "features", "length": 4, "classes": 3}


@pytest.mark.train
def test_a_user_model_of_features_has_cross_entropy_unless_it_brings_its_own_loss(own: str) -> None:
    plain = workload("user", model=f"{own}:make", **FEATURES)
    with_loss = workload("user", model=f"{own}:make", loss_function=f"{own}:loss", **FEATURES)
    module, batch = plain.module(), random_batch(plain)
    assert float(with_loss.loss(module, batch).detach()) != float(plain.loss(module, batch).detach())


@pytest.mark.train
def test_the_layers_of_a_user_model_are_of_the_classes_that_it_names(own: str) -> None:
    one = workload("user", model=f"{own}:make", layer_classes=["Block"], **FEATURES)
    assert len(one.layers(one.module())) == 2
    absent = workload("user", model=f"{own}:make", layer_classes=["Layer"], **FEATURES)
    with pytest.raises(ValueError, match="has no Layer; it has Block, Sequential"):
        absent.layers(absent.module())


@pytest.mark.train
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
def test_a_callable_that_gives_no_module_is_named(model: str, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        workload("user", model=model).module()
    assert told in str(caught.value)


@pytest.mark.train
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "flat"}, r"returned \(12,\) where logits of shape \(3, 3\)"),
        ({"model": "make", "loss_function": "vector"}, r"returned shape \(3, 3\); it must return a scalar"),
    ],
)
def test_a_loss_that_cannot_be_is_named(own: str, options: dict[str, str], told: str) -> None:
    one = workload("user", **{key: f"{own}:{name}" for key, name in options.items()}, **FEATURES)
    with pytest.raises(ValueError, match=told):
        one.loss(one.module(), random_batch(one))


@pytest.mark.train
def test_heads_that_are_repeated_attend_as_grouped_ones_do() -> None:
    import torch

    from distbench.workloads._attention import repeat_kv

    query, key, value = (torch.randn(2, heads, 5, 4, dtype=torch.float64) for heads in (6, 2, 2))
    attend = partial(torch.nn.functional.scaled_dot_product_attention, query, is_causal=True)
    alone = attend(repeat_kv(key, query), repeat_kv(value, query))
    torch.testing.assert_close(alone, attend(key, value, enable_gqa=True))
