"""Workloads by formula: sizes, FLOPs, and impossible options, which have a name."""

import json
import math
import sys
from collections.abc import Iterator

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.suite.sections import check_section
from support.runs import MODELS
from support.small_workloads import SMALL, small, workload


@pytest.fixture(autouse=True)
def models_on_the_path(monkeypatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(MODELS))
    yield
    sys.modules.pop("small", None)


def test_every_workload_has_its_options_in_these_tests():
    assert sorted(SMALL) == registry.plugin_names("workloads")


@pytest.mark.parametrize("name", SMALL)
def test_possible_options_have_no_problem_and_make_a_choice_that_json_keeps(name):
    one = small(name)
    assert one.problem() is None
    assert one.tokens_per_sample == (one.shape.sample_length if one.shape.kind == "tokens" else 1)
    assert registry.create_plugin("workloads", PluginChoice(name, json.loads(json.dumps(SMALL[name])))) == one


# as the model cards' checkpoints count
@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("1b", 1_235_814_400), ("3b", 3_212_749_824), ("8b", 8_030_261_248), ("70b", 70_553_706_496)],
)
def test_the_presets_are_as_large_as_llama(preset, parameters):
    assert workload("transformer", preset=preset).parameters() == parameters


def test_the_small_presets_are_as_large_as_their_names_say():
    assert workload("transformer").parameters() == pytest.approx(1e6, rel=0.05)
    assert workload("transformer", preset="gpt2-small").parameters() == pytest.approx(124e6, rel=0.01)


@pytest.mark.parametrize("tied", [True, False])
def test_the_flops_of_a_decoder_are_those_counted_by_hand(tied):
    one = workload(
        "transformer", dim=8, depth=3, heads=2, kv_heads=1, ffn_dim=10, vocab_size=20, tied=tied, seq_len=5
    )
    block = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8 + 3 * 8 * 10 + 2 * 8
    # a lookup in an embedding of its own is no product; a tied embedding is the head's matrix
    used = 3 * block + 8 + 20 * 8
    assert one.flops_per_sample() == 5 * (6 * used + 12 * 3 * 2 * 4 * 5)


def test_a_window_takes_the_flops_of_what_it_sees():
    sizes = {"dim": 8, "depth": 3, "heads": 2, "seq_len": 40}
    full = workload("transformer", **sizes)
    cut = workload("transformer", **sizes, attention="sliding_window", window=10)
    wide = workload("transformer", **sizes, attention="sliding_window", window=64)
    attended = 12 * 3 * 8 * 40
    assert full.flops_per_sample() - cut.flops_per_sample() == attended * (40 - 10)
    assert wide.flops_per_sample() == full.flops_per_sample()
    assert full.recomputed_flops_per_sample() - cut.recomputed_flops_per_sample() == attended * 30 // 3


def test_a_window_remains_the_same_part_of_a_shorter_row():
    cut = workload("transformer", seq_len=512, attention="sliding_window", window=128)
    assert [sizes["window"] * 4 for sizes in cut.reduced_options()] == [
        sizes["seq_len"] for sizes in cut.reduced_options()
    ]
    assert all("window" not in sizes for sizes in workload("transformer", seq_len=512).reduced_options())


def test_an_mlp_takes_six_flops_a_weight():
    one = workload("mlp", in_features=784, hidden=1024, depth=2, classes=10)
    assert one.flops_per_sample() == 6 * (784 * 1024 + 1024 * 1024 + 1024 * 10)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 3}, "heads = 3 does not divide dim = 128"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"dim": 36}, "heads = 4 divides dim = 36 into heads of width 9"),
        ({"attention": "sliding_window"}, "sliding_window needs a window; set window, for example 32"),
        ({"window": 8}, "window = 8 only applies to sliding-window attention; set attention: sliding_window"),
    ],
)
def test_an_impossible_decoder_names_the_option_and_its_value(options, told):
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
def test_every_size_that_is_impossible_is_told_at_once(name, options):
    _, findings = check_section(registry.load_plugin("workloads", name), SMALL[name] | options, ())
    assert {finding.path[0] for finding in findings} == options.keys()
    assert all("must be a" in finding.message for finding in findings)


def test_the_vocabulary_of_huggingface_is_no_part_of_its_config():
    one = workload("huggingface", model_type="llama", config={"vocab_size": 99})
    assert "config: set vocab_size" in str(one.problem())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "small"}, "model = 'small': must be of the form package.module:callable"),
        ({"model": "small.py:Small"}, "no module small.py"),
        ({"model": "no_such_module:f"}, "no module no_such_module"),
        ({"model": "json.no_such:f"}, "no module json.no_such"),
        ({"model": "small:Small", "loss_function": "nowhere:f"}, "loss_function = 'nowhere:f'"),
        (
            {"model": "small:Small", "image_size": 8},
            "image_size is only used with kind: images, but kind = tokens",
        ),
        ({"model": "small:Small", "kind": "images", "length": 9}, "length is not used with kind: images"),
    ],
)
def test_impossible_options_of_a_user_model_have_a_name(options, told):
    assert told in str(workload("user", **options).problem())


def test_looking_for_a_user_model_runs_none_of_its_code(tmp_path, monkeypatch):
    package = tmp_path / "loud"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "model.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert workload("user", model="loud.model:make").problem() is None
    assert "no module loud.other" in str(workload("user", model="loud.other:make").problem())
