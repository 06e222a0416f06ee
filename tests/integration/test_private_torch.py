"""Torch's private tools that a trace of a step's memory stands on: which they are, and what they have to do.

``constraints.txt`` pins the torch that CI tests. Where a release moves or changes one of these tools, a test
here names it, before the traces of whole engines are wrong.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import Placement

    from distbench.worker.memory_trace import StorageTracer

USED = {
    "torch._subclasses.fake_tensor": {
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "FakeTensor",
        "FakeTensorMode",
        "unset_fake_temporarily",
    },
    "torch.testing._internal.distributed.fake_pg": {"FakeStore"},
    "torch.utils": {"_pytree"},
    "torch.utils._python_dispatch": {"TorchDispatchMode"},
}
"""Private module of torch, or public one with private names -> what the trace takes from it."""
RANKS = 64
SIZE = 1000


def test_the_list_of_private_tools_is_that_of_the_trace():
    from distbench.worker import memory_trace

    tree = ast.parse(Path(memory_trace.__file__).read_text())
    found = {
        node.module: {name.name for name in node.names}
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch")
        and any(
            part.startswith("_") for part in [*str(node.module).split("."), *(n.name for n in node.names)]
        )
    }
    assert found == USED


@pytest.mark.parametrize("module", USED)
def test_torch_still_has_its_private_tools(module):
    import torch

    missing = {name for name in USED[module] if not hasattr(importlib.import_module(module), name)}
    assert not missing, (
        f"torch {torch.__version__} has no {module}.{missing}: see distbench.worker.memory_trace"
    )


@pytest.fixture
def counter() -> Iterator[StorageTracer]:
    """Counter of the bytes of fake tensors, on rank 0 of ranks that do not exist."""
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from distbench.worker.memory_trace import StorageTracer

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    tracer = StorageTracer("cpu")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), tracer, tracer.counted_resizes():
            yield tracer
    finally:
        dist.destroy_process_group()


def test_a_fake_storage_counts_from_its_birth_to_its_death(counter):
    import torch

    tensor = torch.empty(SIZE)
    assert counter.allocated == 4 * SIZE
    view = tensor[1:]
    assert counter.allocated == 4 * SIZE
    # as FSDP frees what it has gathered
    tensor.untyped_storage().resize_(0)
    assert counter.allocated == 0
    tensor.untyped_storage().resize_(4 * SIZE)
    assert counter.allocated == 4 * SIZE
    del tensor, view
    assert counter.allocated == 0
    assert counter.peaks == {"data": 4 * SIZE}


def test_what_needs_no_memory_does_not_count(counter):
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    kept = torch.empty(SIZE, device="meta")
    assert counter.allocated == 0
    with unset_fake_temporarily():
        real = torch.arange(3)
    assert real.tolist() == [0, 1, 2]
    assert kept.shape == (SIZE,)


def gathered(shard: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    whole = shard.new_empty(RANKS * SIZE)
    # FSDP calls them by their new names as soon as a release has these
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, shard)
    return whole


def scattered(whole: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    shard = whole.new_empty(SIZE)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, whole)
    return shard


def gathered_tensor(shard: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import Replicate, Shard

    return redistributed(shard, Shard(0), Replicate())


def scattered_tensor(whole: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import Partial, Shard

    return redistributed(whole, Partial(), Shard(0))


def redistributed(local: torch.Tensor, before: Placement, after: Placement) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    from distbench.strategies.torch_engine.device_meshes import init_mesh

    mesh = init_mesh({"tp": RANKS}, local.device)
    given = DTensor.from_local(local, mesh, [before], run_check=False)
    return given.redistribute(mesh, [after]).to_local()


@pytest.mark.parametrize(
    ("collective", "given", "made"),
    [
        (gathered, SIZE, RANKS * SIZE),
        (scattered, RANKS * SIZE, SIZE),
        (gathered_tensor, SIZE, RANKS * SIZE),
        (scattered_tensor, RANKS * SIZE, SIZE),
    ],
)
def test_a_collective_among_ranks_that_do_not_exist_returns_with_what_gloo_copies(
    counter, collective, given, made
):
    """An operation under another name would have no copy, and the peak would be too small."""
    import torch

    result = collective(torch.empty(given))
    assert result.shape == (made,)
    copied = 4 * RANKS * SIZE
    assert counter.peaks["data"] == 4 * (given + made) + copied
