"""Device meshes by their sizes: places of ranks, and the rows they get."""

from pathlib import Path

import pytest

from distbench.core import meshes
from distbench.core.meshes import MeshShape
from support.planned_suites import planned

MESH = {"pp": 2, "dp_shard": 2, "tp": 2}
MODEL = (
    "{transformer: {dim: 64, depth: 4, heads: 4, kv_heads: 4, ffn_dim: 128, vocab_size: 256, seq_len: 32}}"
)


def test_ranks_that_follow_each_other_differ_in_the_innermost_dimension():
    mesh = MeshShape.from_request({"tp": 2, "dp_shard": 2}, 8, "pp")
    assert mesh.sizes == {"pp": 2, "dp_shard": 2, "tp": 2}
    assert list(mesh.sizes) == ["pp", "dp_shard", "tp"]
    assert mesh.world_size == 8
    assert mesh.coordinates(5) == {"pp": 1, "dp_shard": 0, "tp": 1}
    assert [mesh.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_copies_and_their_shards_all_have_rows_of_their_own():
    mesh = MeshShape.from_request({"dp_replicate": 2, "dp_shard": 3}, 12, "pp")
    assert mesh.data_ranks == 6
    assert [mesh.data_rank(rank) for rank in range(12)] == [0, 1, 2, 3, 4, 5] * 2
    assert [mesh.group_rank(rank, ["dp_shard"]) for rank in range(6)] == [0, 1, 2, 0, 1, 2]


def test_ranks_that_share_experts_have_rows_of_their_own():
    mesh = MeshShape.from_request({"ep": 2}, 4, "dp_replicate")
    assert mesh.sizes == {"dp_replicate": 2, "ep": 2}
    assert (mesh.data_ranks, mesh.model_ranks) == (4, 1)
    assert [mesh.data_rank(rank) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("mesh", "streams"),
    [
        ({"dp_replicate": 4}, [0, 1, 2, 3]),
        ({"pp": 2, "dp_shard": 2}, [0, 1, 0, 1]),
        ({"dp_shard": 2, "tp": 2}, [0, 0, 1, 1]),
        # the same samples, other positions
        ({"dp_replicate": 2, "cp": 2}, [0, 1, 2, 3]),
        ({"dp_replicate": 2, "ep": 2}, [0, 1, 2, 3]),
    ],
)
def test_ranks_with_the_same_activations_share_a_stream_of_random_numbers(mesh, streams):
    assert [MeshShape(mesh).random_stream(rank) for rank in range(4)] == streams


def test_what_a_mesh_does_not_have_is_of_one_rank():
    mesh = MeshShape.from_request({}, 4, "pp")
    assert (mesh.size("tp"), mesh.data_ranks) == (1, 1)
    assert [mesh.data_rank(rank) for rank in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("ranks", "mesh", "over"),
    [
        ([0, 1], MESH, "tp"),
        ([5, 7], MESH, "dp_shard"),
        ([2, 6], MESH, "pp"),
        ([0, 1, 2, 3], MESH, "dp_shard x tp"),
        (range(8), MESH, "pp x dp_shard x tp"),
        ([3], MESH, None),
        ([0, 1], {}, None),
        # a dimension of one rank has no group
        ([0, 2], {"dp_replicate": 2, "dp_shard": 1, "tp": 2}, "dp_replicate"),
    ],
)
def test_a_group_is_named_by_the_dimension_in_which_its_ranks_differ(ranks, mesh, over):
    assert MeshShape(mesh).spanned_dimensions(ranks) == over


@pytest.mark.parametrize(
    ("asked", "ranks", "why"),
    [
        ({"dp_shard": 3}, 4, "mesh: {dp_shard: 3}: 3 does not divide the world size, 4; pp gets"),
        ({"dp_shard": 2, "tp": 2}, 6, "2 x 2 = 4 does not divide the world size, 6"),
        ({"pp": 2, "tp": 2}, 8, "2 x 2 = 4 is not the world size, 8; omit pp to use the rest"),
        ({"pp": 2, "tp": 2}, 4, ""),
        ({"tp": 2}, 8, ""),
        ({}, 3, ""),
    ],
)
def test_a_mesh_that_the_ranks_do_not_fill_is_refused_with_the_numbers(asked, ranks, why):
    assert why in (meshes.mesh_size_problem(asked, ranks, "pp") or "")
    assert bool(why) == bool(meshes.mesh_size_problem(asked, ranks, "pp"))


@pytest.mark.parametrize(
    ("asked", "ranks", "near"),
    [
        ({"tp": 3}, 4, [{"tp": 2}, {"tp": 4}, {"tp": 1}]),
        # the dimension with the rest is not named, unless it was asked for
        ({"pp": 4}, 4, [{"pp": 2, "tp": 2}, {"pp": 1, "tp": 4}]),
        ({"pp": 2, "tp": 4}, 4, [{"pp": 2, "tp": 2}, {"pp": 1, "tp": 4}, {"pp": 4, "tp": 1}]),
        ({}, 4, [{"tp": 2}, {"tp": 4}]),
    ],
)
def test_the_most_similar_meshes_come_first(asked, ranks, near):
    assert meshes.similar_meshes(asked, ranks, "pp", ("pp", "tp")) == near


@pytest.mark.parametrize(
    ("strategy", "world_size", "model", "advice"),
    [
        ("pp: {mesh: {dp_shard: 3}}", 4, {}, ["{dp_shard: 2}", "{dp_shard: 1}"]),
        ("pp: {mesh: {dp_shard: 3, tp: 2}}", 6, {}, ["{dp_shard: 3, tp: 1}", "{dp_shard: 1, tp: 2}"]),
        ("pp: {mesh: {pp: 8}}", 8, {}, ["{pp: 4, tp: 2}", "{pp: 4, dp_shard: 2}"]),
        ("pp: {mesh: {}}", 8, {}, ["{tp: 2}", "{dp_shard: 2}"]),
        ("fsdp: {mesh: {tp: 2}}", 3, {}, ["{tp: 1}"]),
        ("cp: {mesh: {cp: 3}}", 4, {"heads: 4, kv_heads: 4": "heads: 2, kv_heads: 2"}, ["{cp: 2}"]),
        ("ep: {mesh: {ep: 3}}", 4, {"seq_len": "experts: 6, seq_len"}, ["{ep: 2}", "{ep: 1}"]),
    ],
)
def test_the_meshes_that_are_named_as_fitting_fit(strategy, world_size, model, advice, tmp_path):
    found = meshes_for(tmp_path, strategy, world_size, model)
    assert found.endswith(f"; mesh: {' or '.join(advice)} would fit")
    asked = strategy.partition("mesh: ")[2][:-1]
    assert [meshes_for(tmp_path, strategy.replace(asked, mesh), world_size, model) for mesh in advice] == [
        "" for _ in advice
    ]


@pytest.mark.parametrize(
    ("strategy", "world_size", "length", "compiled", "advice"),
    [
        ("cp: {mesh: {cp: 2}}", 3, 32, "false", "no mesh of 3 ranks would fit, but world size 2 or 4 would"),
        (
            "cp: {mesh: {cp: 2}}",
            3,
            31,
            "false",
            "no other mesh would fit; mesh: {cp: 3}: context parallelism over 3 devices: heads = 4, kv",
        ),
        (
            "pp: {mesh: {dp_shard: 3}}",
            4,
            32,
            "true",
            "no other mesh would fit; mesh: {dp_shard: 2}: compile is not supported with pipeline",
        ),
    ],
)
def test_where_no_mesh_fits_a_world_size_does_or_there_is_a_reason(
    strategy, world_size, length, compiled, advice, tmp_path
):
    model = {"seq_len: 32": f"seq_len: {length}"}
    assert advice in meshes_for(tmp_path, strategy, world_size, model, compile=compiled)


def meshes_for(folder: Path, strategy: str, world_size: int, model: dict[str, str], **more: str) -> str:
    """Why *strategy* can't train a model that is changed by *model*; empty if it can."""
    workload = MODEL
    for old, new in model.items():
        workload = workload.replace(old, new)
    sections = {"workload": workload, "batch": "{global_batch_size: 24}", **more}
    return planned(folder, strategy, world_size, **sections).problem or ""
