"""FLOPs of any model: the formulas of the built-in decoder agree, and what can't be counted has a reason."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.base import Workload
from support.records import case
from support.releases import needs_release
from support.runs import MODELS

SEQ = 32
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# of both layers: queries and outputs, keys and values of half the heads, and the head of 256 tokens
ATTENTION, HEAD = 2 * 3 * 64 * 64, 256 * 64
SCORES = 12 * 2 * 64 * SEQ
DECODERS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "window": {"attention": "sliding_window", "window": 16},
    "gpt2-small": {"preset": "gpt2-small", "seq_len": 256},
}


@pytest.fixture(autouse=True)
def models_on_the_path(monkeypatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(MODELS))
    yield
    sys.modules.pop("counted", None)


def made(name: str, **options: Any) -> Workload:
    one: Workload = registry.create_plugin("workloads", PluginChoice(name, options))
    return one


def counted(one: Workload, checkpointing: str = "none") -> Any:
    import torch

    from distbench.worker.flops import count_flops

    of = case("single", 1, activation_checkpointing=checkpointing, data=PluginChoice(one.default_data))
    found = count_flops(of, one, torch.device("cpu"))
    assert (found.model is None) == bool(found.unknown), found.unknown
    return found


def of_user(model: str, checkpointing: str = "none") -> Any:
    return counted(made("user", model=f"counted:{model}", length=SEQ), checkpointing)


@pytest.mark.parametrize("name", ["tiny", pytest.param("gpt2-small", marks=pytest.mark.deep)])
def test_the_formulas_of_the_decoder_are_what_torch_counts(name):
    one = made("transformer", **DECODERS[name])
    full, selective = counted(one, "full"), counted(one, "selective")
    assert full.unknown == ""
    assert full.model == pytest.approx(one.flops_per_sample(), rel=0.01)
    assert full.again == pytest.approx(one.recomputed_flops_per_sample(), rel=0.01)
    assert (selective.model, selective.again) == (full.model, 0)


def test_a_window_counts_whole_rows_where_a_mask_throws_scores_away():
    """The formula counts the positions that are seen; without kernels for blocks more is computed."""
    cut, whole = made("transformer", **DECODERS["window"]), made("transformer")
    assert counted(cut).model == counted(whole).model > cut.flops_per_sample()


def test_the_first_layer_of_an_mlp_has_no_gradient_of_its_input():
    one, found = made("mlp"), counted(made("mlp"), "full")
    assert found.model == one.flops_per_sample() - 2 * 64 * 1024
    assert found.again == one.recomputed_flops_per_sample() == 0


@pytest.mark.parametrize(
    ("model_type", "config", "weights", "again"),
    [
        pytest.param(
            "llama",
            LLAMA,
            ATTENTION + 2 * 3 * 64 * 128,
            ATTENTION + 2 * 2 * 64 * 128,
            # 5.14 multiplies positions and frequencies as matrices: 256 FLOPs more
            marks=needs_release("transformers", "5.23"),
        ),
        pytest.param(
            "gpt2",
            {"n_embd": 64, "n_layer": 2, "n_head": 4},
            2 * 12 * 64 * 64,
            2 * 8 * 64 * 64,
            marks=pytest.mark.deep,
        ),
        pytest.param(
            "mixtral",
            {**LLAMA, "num_local_experts": 4},
            # two of four experts, and the router
            ATTENTION + 2 * (2 * 3 * 64 * 128 + 4 * 64),
            ATTENTION + 2 * (2 * 3 * 64 * 128 + 4 * 64),
            marks=pytest.mark.deep,
        ),
    ],
)
def test_decoders_of_transformers_take_six_flops_a_weight_and_those_of_their_scores(
    model_type, config, weights, again
):
    one = made("huggingface", model_type=model_type, config=config, seq_len=SEQ)
    found = counted(one, "full")
    assert found.model == SEQ * (6 * (weights + HEAD) + SCORES)
    # the product that ends a layer is needed by nobody, unless routing weights multiply it
    assert found.again == SEQ * (2 * again + SCORES // 3)


def test_a_frozen_weight_takes_no_gradient_and_no_flops_for_it():
    layers, head = 4 * 16 * 16, 256 * 16
    assert of_user("Tower").model == SEQ * 6 * (layers + head)
    # back through the head and two layers, and the gradient of one
    assert of_user("Frozen").model == SEQ * (2 * (layers + head) + 2 * (head + 2 * 16 * 16) + 2 * 16 * 16)


def test_recurrent_layers_are_counted_as_their_products():
    # four gates, each of an input and of what the step before gives, of which the first has no gradient
    gates = 4 * 16 * 16
    assert of_user("Recurrent").model == SEQ * 6 * (2 * gates + 256 * 16) - 2 * gates


def test_a_kernel_of_unknown_work_is_named():
    found = of_user("Fused")
    assert found.model is None
    assert "has no formula for counted::kernel" in found.unknown
    assert "register_flop_formula" in found.unknown


def test_a_formula_that_the_model_registers_counts():
    import torch
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    assert of_user("Fused").model is None
    operator = torch.ops.counted.kernel
    register_flop_formula(operator)(lambda shape, **_: 1000 * shape[0])
    try:
        assert of_user("Fused").model == SEQ * 6 * 256 * 16 + 1000
    finally:
        del flop_registry[operator]


def test_a_model_whose_shapes_depend_on_values_has_a_reason():
    found = of_user("Chosen", "full")
    assert found.model is None
    assert "DynamicOutputShapeException on tensors without values: aten.nonzero" in found.unknown


EDITED = """\
from torch import nn

class Edited(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(256, 16), nn.Linear(16, 256))

    def forward(self, ids):
        embedded, logits = self
        return logits(embedded(ids))
"""
RANK = """\
import os
from pathlib import Path
import edited, torch
import torch.distributed as dist
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.strategies.base import RankContext
from distbench.worker.flops import flops_of
from support.records import case

chosen, here = PluginChoice("user", {"model": "edited:Edited", "length": 32}), Path.cwd()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
of, one = case("single", 1, workload=chosen), registry.create_plugin("workloads", chosen)
setting = RankContext(of, one, here, torch.device("cpu"), 0, 1, here, run_cache=here / "found")
print(flops_of(setting).model, flush=True)
# as ranks end: gloo may abort while Python takes it down
os._exit(0)
"""


def test_a_model_that_was_edited_before_a_resume_is_counted_again(tmp_path):
    def flops(source: str) -> int:
        (tmp_path / "edited.py").write_text(source)
        path = os.pathsep.join(
            [str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        )
        environment = {**os.environ, "PYTHONPATH": path}
        told = subprocess.check_output([sys.executable, "-c", RANK], env=environment, cwd=tmp_path)
        # torch 2.9 prints a line of gloo first
        return int(told.splitlines()[-1])

    assert flops(EDITED) == SEQ * 6 * 256 * 16
    # the same parameters, used twice
    twice = EDITED.replace("logits(embedded(ids))", "logits(embedded(ids)) + logits(2 * embedded(ids))")
    assert flops(twice) == 2 * SEQ * 6 * 256 * 16
