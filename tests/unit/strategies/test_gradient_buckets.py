"""Numbers of calls and synchronizations before a run, from the shapes of a model and an engine's rules."""

import pytest

from distbench.core.case import Batch, Case, PluginChoice
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.theory.gradient_buckets import buckets_up_to, buckets_within
from distbench.strategies.zero import Zero
from distbench.workloads.base import workload_of
from support.records import case

PRESET_8B = PluginChoice("transformer", {"preset": "8b"})
PARAMETERS_8B = 8_030_261_248


def expected(strategy, of: Case, parameters: int) -> dict[str, tuple[float | None, float | None]]:
    """Calls and synchronizations of each operation of *strategy*."""
    return {each.op: (each.calls, each.synchronizations) for each in strategy.traffic(of, parameters)}


@pytest.mark.parametrize(
    ("limits", "buckets"),
    [
        ((4,), [[3, 1], [5], [2, 2], [1]]),
        ((1, 4), [[3], [1, 5], [2, 2], [1]]),
        ((100,), [[3, 1, 5, 2, 2, 1]]),
    ],
)
def test_ddp_closes_a_bucket_that_reaches_its_limit(limits, buckets):
    assert buckets_up_to([3, 1, 5, 2, 2, 1], limits) == buckets


def test_deepspeed_closes_a_bucket_that_would_exceed_its_size():
    assert buckets_within([3, 1, 5, 2, 2, 1], 4) == [[3, 1], [5], [2, 2], [1]]
    assert buckets_within([3, 1, 5, 2, 2, 1], 5) == [[3, 1], [5], [2, 2, 1]]


def test_matrices_above_25_mib_are_buckets_of_their_own():
    of = case("ddp", 8, workload=PRESET_8B, batch=Batch(8, 1, 1))
    # of 32 layers 7 matrices each, of which those of keys and values have 16 MiB: they make one bucket; the
    # norms fill no bucket; then the head and the embedding
    assert expected(DistributedDataParallel(), of, PARAMETERS_8B) == {"all_reduce": (32 * 6 + 2, 32 * 6 + 1)}


def test_without_shapes_or_with_compiled_layers_theory_counts_nothing():
    user = PluginChoice("user", {"model": "small:Small", "length": 32})
    for changed in ({"workload": user}, {"compile": "default"}):
        assert expected(DistributedDataParallel(), case("ddp", **changed), 1000) == {
            "all_reduce": (None, None)
        }


def test_what_stays_gathered_is_not_gathered_again():
    of = case("fsdp", 1024, workload=PRESET_8B, batch=Batch(1024, 1, 1))
    gathers = FullyShardedDataParallel().traffic(of, PARAMETERS_8B)[0]
    table = 2 * 128_256 * 4096 + 4096
    # 1,024 ranks pad the vocabulary by 768 rows, in the head and the embedding
    padded = PARAMETERS_8B + 2 * 768 * 4096
    assert gathers.bytes == 4 * (2 * padded - table - 2 * 768 * 4096)
    assert gathers.still_gathered_bytes == 4 * table
    assert (gathers.calls, gathers.synchronizations) == (65, 32 + 2)


def test_stages_1_and_2_all_reduce_what_the_paper_reduce_scatters():
    parameters = workload_of(case("zero")).parameters()
    for stage, synchronizations in ((1, 1), (2, None)):
        found = Zero(stage=stage).traffic(case("zero"), parameters)
        reduction = next(each for each in found if each.op == "reduce_scatter")
        assert reduction.issued_as == "all_reduce"
        assert synchronizations is None or reduction.synchronizations == synchronizations
        assert next(each.calls for each in found if each.op == "all_gather") == 1


def test_a_model_in_one_prefetch_is_gathered_at_once_and_never_again():
    sizes = {"max_live_parameters": 10**9, "max_reuse_distance": 10**9, "prefetch_bucket_size": 10**9}
    parameters = workload_of(case("zero")).parameters()
    (gathers, _) = Zero(stage=3, **sizes).traffic(case("zero"), parameters)
    # before its forward pass the whole model, which has no parameter of its own, prefetches all
    assert gathers.calls == 1
    assert gathers.bytes == 4 * parameters
    assert gathers.still_gathered_bytes == 4 * parameters


def test_a_rank_keeps_the_whole_gradient_of_a_tensor_that_two_partitions_share():
    deep = {"dim": 64, "depth": 2, "heads": 4, "kv_heads": 4, "ffn_dim": 128, "vocab_size": 256}
    of = case("zero", workload=PluginChoice("transformer", deep))
    parameters = workload_of(of).parameters()
    states = Zero(stage=2).model_states(of, parameters)
    # partitions meet in the last matrix of the first layer: 128 x 64 elements, which both keep
    before = 256 * 64 + 64 + 4 * 64 * 64 + 64 + 2 * 128 * 64
    assert before < parameters / 2 < before + 128 * 64
    assert states["gradients"] == 4 * max(before + 128 * 64, parameters - before)
