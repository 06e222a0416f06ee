"""Initial weights: the same numbers in every module that loads them, sharded or not."""

import math
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.base import Workload
from support.runs import MODELS

LLAMA = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2}
CHOICES = {
    "tied": PluginChoice("transformer", {"dim": 36, "heads": 6, "kv_heads": 2, "depth": 2, "ffn_dim": 47}),
    "untied": PluginChoice("transformer", {"dim": 32, "depth": 1, "tied": False}),
    "mlp": PluginChoice("mlp", {"hidden": 16}),
    "llama": PluginChoice("huggingface", {"model_type": "llama", "config": LLAMA}),
    "gpt2": PluginChoice("huggingface", {"model_type": "gpt2", "config": GPT2}),
}
OWN = """
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(3, 2)
        self.register_buffer("table", torch.rand(4), persistent=False)
        self.register_buffer("front", self.table[:2])
        self.register_buffer("count", torch.tensor(5))
        self.frozen = torch.nn.Parameter(torch.arange(3), requires_grad=False)

class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        init = torch.nn.init
        fills = {
            "normal": lambda w: init.normal_(w, 0.5, 0.1),
            "uniform": lambda w: init.uniform_(w, -0.2, 0.6),
            "cut": lambda w: init.trunc_normal_(w, std=0.1, a=-0.1, b=0.2),
            "kaiming": init.kaiming_uniform_,
            "scaled": lambda w: init.normal_(w).div_(7),
            "ones": init.ones_,
            "orthogonal": init.orthogonal_,
            "upper": lambda w: init.normal_(w).triu_(),
        }
        for name, fill in fills.items():
            parameter = torch.nn.Parameter(torch.empty(200, 300))
            with torch.no_grad():
                fill(parameter)
            self.register_parameter(name, parameter)
        self.padded = torch.nn.Embedding(300, 200, padding_idx=3)
        self.made = torch.nn.Parameter(torch.arange(4.0))
        self.twice = torch.nn.Parameter(self.normal.data)

class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.module = torch.nn.Linear(2, 2)
"""


def workload(name: str) -> Workload:
    made: Workload = registry.create_plugin("workloads", CHOICES[name])
    return made


def saved(one: Workload, folder: Path, **more: Any) -> Path:
    from distbench.workloads import weights

    file = folder / "weights.safetensors"
    weights.save_initial(one, 11, file, **more)
    return file


def tensors(module: Any) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("name", CHOICES)
def test_exact_weights_are_those_that_the_constructor_draws_from_the_seed(name, tmp_path):
    import torch

    from distbench.workloads import weights

    one = workload(name)
    loaded = tensors(weights.load_module(one, saved(one, tmp_path, exact=True), torch.device("cpu")))
    torch.manual_seed(11)
    drawn = tensors(one.module())
    assert loaded.keys() == drawn.keys()
    for key, tensor in drawn.items():
        assert torch.equal(loaded[key], tensor), key


def test_the_same_seed_gives_the_same_file_and_another_seed_another(tmp_path):
    from distbench.workloads import weights

    files = [tmp_path / name for name in ("first", "again", "other")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        weights.save_initial(workload("tied"), seed, file)
    first, again, other = (file.read_bytes() for file in files)
    assert first == again != other
    assert sorted(tmp_path.iterdir()) == sorted(files), "nothing is left beside them"


def test_a_shared_parameter_stands_in_the_file_once_and_is_shared_again_when_loaded(tmp_path):
    import torch

    from distbench.workloads import weights

    one = workload("tied")
    file = saved(one, tmp_path)
    module = weights.load_module(one, file, torch.device("cpu"))
    assert "head.weight" not in weights.read_tensors(file)
    assert module.head.weight is module.embedding.weight
    assert [[name for _, name in group] for group in weights.tied_groups(module)] == [["weight", "weight"]]


@pytest.fixture
def many(own, tmp_path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of ``Many`` as they are loaded, and as its constructor draws them."""
    import torch

    from distbench.workloads import weights

    one = registry.create_plugin("workloads", PluginChoice("user", {"model": f"{own}:Many"}))
    torch.manual_seed(5)
    return weights.read_tensors(saved(one, tmp_path)), tensors(one.module())


@pytest.mark.parametrize("name", ["uniform", "cut", "kaiming", "scaled", "ones"])
def test_a_parameter_is_drawn_from_the_distribution_of_its_constructor(name, many):
    drawn, own = (tensors[name].detach().flatten() for tensors in many)
    spread = float(own.std())
    assert float((drawn.sort().values - own.sort().values).abs().mean()) <= 0.02 * spread
    assert float(drawn.std()) == pytest.approx(spread, rel=0.02)


@pytest.mark.parametrize(("name", "low", "high"), [("uniform", -0.2, 0.6), ("cut", -0.1, 0.2)])
def test_no_draw_is_outside_of_what_its_distribution_is_cut_to(name, low, high, many):
    drawn, _ = many
    assert float(drawn[name].min()) == pytest.approx(low, abs=1e-3)
    assert float(drawn[name].max()) == pytest.approx(high, abs=1e-3)
    assert low <= drawn[name].min() < drawn[name].max() <= high


def test_what_is_no_draw_of_each_element_alone_is_kept_as_the_constructor_leaves_it(many):
    import torch

    drawn, own = many
    square = drawn["orthogonal"] @ drawn["orthogonal"].T
    assert torch.allclose(square, torch.eye(200), atol=1e-5)
    assert torch.equal(drawn["upper"], drawn["upper"].triu())
    assert float(drawn["upper"][drawn["upper"] != 0].std()) == pytest.approx(1, abs=0.05)
    assert drawn["padded.weight"][3].eq(0).all()
    assert float(drawn["padded.weight"].std()) == pytest.approx(1, abs=0.05)
    assert torch.equal(drawn["made"], own["made"])
    assert torch.equal(drawn["twice"], drawn["normal"]), "two parameters that shared their numbers still do"


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 47), (16, 64), (1000, 300_000), (262_143, 262_145)])
def test_any_part_of_a_tensor_is_drawn_without_the_rest(start, stop, tmp_path):
    import torch

    from distbench.workloads import weights

    one = registry.create_plugin("workloads", PluginChoice("mlp", {"hidden": 600}))
    with weights.open_weights(saved(one, tmp_path)) as initial:
        part = torch.empty(stop - start)
        initial.fill(part, "2.weight", start)
        assert torch.equal(part, initial.tensor("2.weight").flatten()[start:stop])


def test_what_is_drawn_for_a_seed_a_name_and_a_place_never_changes(tmp_path):
    from distbench.workloads import weights

    drawn = weights.read_tensors(saved(workload("tied"), tmp_path))["blocks.1.ffn.up.weight"]
    frozen = ["-0x1.f12fe80000000p-6", "-0x1.3385960000000p-7", "-0x1.a6db540000000p-7"]
    assert [value.hex() for value in drawn.flatten()[-3:].tolist()] == frozen


def test_no_two_tensors_are_drawn_alike(tmp_path):
    from distbench.workloads import weights

    drawn = [
        tensor.flatten() for tensor in weights.read_tensors(saved(workload("untied"), tmp_path)).values()
    ]
    first = [tensor[0] for tensor in drawn if tensor.std() > 0]
    assert len({float(value) for value in first}) == len(first)


def test_the_file_does_not_grow_with_the_model(tmp_path):
    from distbench.workloads import weights

    one = registry.create_plugin("workloads", PluginChoice("transformer", {"preset": "8b"}))
    file = saved(one, tmp_path)
    with weights.open_weights(file) as initial:
        counted = sum(math.prod(initial.shape(name)) for name in initial.names)
    assert counted == one.parameters()
    assert file.stat().st_size < 1 << 20


@pytest.fixture(params=["drawn", "stored"])
def moved(request, tmp_path) -> tuple[Path, Path]:
    """A file of initial weights that bf16 can say, and one by which they are moved."""
    from distbench.workloads import weights

    file = saved(workload("mlp"), tmp_path, compute_dtype="bf16", exact=request.param == "stored")
    weights.write_perturbation(tmp_path / "moved", weights.Perturbation(str(file), 7, "bf16"))
    return file, tmp_path / "moved"


def test_each_weight_is_moved_by_an_ulp_and_one_in_twelve_by_one_of_the_compute_dtype(moved):
    import torch

    from distbench.workloads import weights

    (before, after) = (weights.read_tensors(file) for file in moved)
    assert after.keys() == before.keys()
    ulps = [(after[key].view(torch.int32) - tensor.view(torch.int32)).abs() for key, tensor in before.items()]
    moves = torch.cat([each.flatten() for each in ulps])
    # of a zero the neighbour is a whole exponent away
    moves = moves[torch.cat([tensor.flatten() for tensor in before.values()]) != 0]
    near, far = moves == 1, moves == 1 << 16
    assert bool((near | far).all())
    assert float(far.double().mean()) == pytest.approx(1 / 12, abs=0.03)


def test_any_part_of_a_tensor_is_moved_without_the_rest(moved):
    import torch

    from distbench.workloads import weights

    _, file = moved
    with weights.open_weights(file) as initial:
        part = torch.empty(700)
        initial.fill(part, "0.weight", 321)
        assert torch.equal(part, initial.tensor("0.weight").flatten()[321:1021])
    assert file.stat().st_size < 1 << 10


def test_another_number_moves_otherwise_and_buffers_and_whole_numbers_stay(own, tmp_path):
    import torch

    from distbench.workloads import weights

    file = saved(registry.create_plugin("workloads", PluginChoice("user", {"model": f"{own}:Own"})), tmp_path)
    before, tensors = weights.read_tensors(file), []
    for number in (1, 1, 2):
        weights.write_perturbation(tmp_path / "moved", weights.Perturbation(str(file), number, "fp32"))
        tensors.append(weights.read_tensors(tmp_path / "moved"))
    first, again, other = tensors
    assert torch.equal(first["weight"], again["weight"])
    assert not torch.equal(first["weight"], other["weight"])
    for name in ("table", "front", "count", "frozen"):
        assert torch.equal(first[name], before[name]), name


def test_rounding_keeps_fp32_numbers_that_bf16_can_say(tmp_path):
    import torch

    from distbench.workloads import weights

    tensors = weights.read_tensors(saved(workload("untied"), tmp_path, compute_dtype="bf16"))
    assert tensors
    for tensor in tensors.values():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, tensor.bfloat16().float())


def test_buffers_views_and_whole_numbers_of_a_user_module_are_kept(own, tmp_path):
    import torch

    from distbench.workloads import weights

    one = registry.create_plugin("workloads", PluginChoice("user", {"model": f"{own}:Own"}))
    module = weights.load_module(one, saved(one, tmp_path, compute_dtype="bf16"), torch.device("cpu"))
    assert torch.equal(module.front, module.table[:2])
    assert int(module.count) == 5
    assert module.frozen.tolist() == [0, 1, 2]


def test_names_that_only_wrappers_would_tell_apart_are_refused(own, tmp_path):
    one = registry.create_plugin("workloads", PluginChoice("user", {"model": f"{own}:Twice"}))
    with pytest.raises(ValueError, match="same name weight"):
        saved(one, tmp_path)


def test_weights_of_another_module_are_refused_with_the_names(tmp_path):
    from distbench.workloads import weights

    file = saved(workload("untied"), tmp_path)
    with pytest.raises(ValueError, match=r"missing blocks\.1.*unexpected head\.weight"):
        weights.load_into(workload("tied").module(), file)


def test_weights_of_other_shapes_are_refused_with_the_shapes(tmp_path):
    from distbench.workloads import weights

    file = saved(workload("mlp"), tmp_path)
    wider = registry.create_plugin("workloads", PluginChoice("mlp", {"hidden": 20}))
    with pytest.raises(
        ValueError, match=r"0\.weight has shape \[16, 64\], but the module expects \[20, 64\]"
    ):
        weights.load_into(wider.module(), file)


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("module.blocks.0.wq.weight", "blocks.0.wq.weight"),
        ("module.module.head.weight", "head.weight"),
        ("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.wq.weight", "blocks.0.wq.weight"),
        ("blocks.0._checkpoint_wrapped_module.wq.weight", "blocks.0.wq.weight"),
        ("_orig_mod.module.norm.weight", "norm.weight"),
        ("blocks.0.module.weight", "blocks.0.module.weight"),
    ],
)
def test_a_plain_name_has_no_wrapper_in_it(wrapped, plain):
    from distbench.workloads import weights

    assert weights.plain_name(wrapped) == plain


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """Return the folder where two ranks of FSDP2 have loaded, and gathered again, each module."""
    folder = tmp_path_factory.mktemp("sharded")
    for name in CHOICES:
        saved(workload(name), folder).rename(folder / name)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_load_shards, args=(folder, rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(240)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return folder


WITHOUT_NUMBERS = """
import sys
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads import weights
small = registry.create_plugin("workloads", PluginChoice("user", {"model": "small:Small", "length": 32}))
module = weights.without_numbers(small)
print({each.device.type for each in module.parameters()}, "torch._dynamo" in sys.modules)
"""


def test_a_module_without_numbers_is_constructed_without_the_compiler_of_torch():
    """Its import takes longer than all else that a plan asks a user's model."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBERS], cwd=MODELS, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["{'meta'}", "False"], done.stderr


@pytest.mark.parametrize("name", CHOICES)
def test_the_shards_that_two_ranks_load_make_the_whole(name, sharded):
    import torch

    from distbench.workloads import weights

    whole, gathered = weights.read_tensors(sharded / name), weights.read_tensors(sharded / f"{name}.gathered")
    assert gathered.keys() == whole.keys()
    for key, tensor in whole.items():
        assert torch.equal(gathered[key], tensor), key


def _load_shards(folder: Path, rank: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    for name in CHOICES:
        _load_sharded(workload(name), folder / name, rank)
    dist.barrier()
    sys.stderr.flush()
    # an interpreter that ends normally after gloo's teardown aborts now and then
    os._exit(0)


def _load_sharded(one: Workload, file: Path, rank: int) -> None:
    """Load the weights into the shards of FSDP2; rank 0 keeps what they make together."""
    import torch
    from safetensors.torch import save_file
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.debug import CommDebugMode

    from distbench.workloads import weights

    module = weights.meta_module(one)
    tied = weights.tied_groups(module)
    for layer in one.layers(module):
        fully_shard(layer)
    fully_shard(module)
    module.to_empty(device="cpu")
    weights.retie(module, tied)
    with CommDebugMode() as communication:
        weights.load_into(module, file)
    assert communication.get_total_counts() == 0
    assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    whole = {key: _whole(tensor).contiguous() for key, tensor in tensors(module).items()}
    if rank == 0:
        save_file(whole, file.with_name(f"{file.name}.gathered"))
    assert torch.isfinite(one.loss(module, _batch(one))), "the sharded module runs"


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _batch(one: Workload) -> dict[str, Any]:
    import torch

    shape = one.shape
    if shape.kind == "features":
        return {"features": torch.rand(2, shape.sample_length), "labels": torch.zeros(2, dtype=torch.long)}
    ids = torch.zeros(2, shape.sample_length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}
