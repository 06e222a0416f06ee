"""What moves over each dimension of a device mesh: bytes and numbers of calls, held against theory."""

import dataclasses
from pathlib import Path

import pytest

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume, volume_sentence
from distbench.analysis.mesh_dimensions import (
    DimensionTraffic,
    call_count_mismatches,
    dimension_traffic,
    misplaced_traffic,
)
from distbench.core.case import Batch, Case, PluginChoice
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.report.page import chapters
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.tp import TensorParallel
from distbench.views.charts.figures import Chart
from distbench.views.communication import CommunicationView
from support.records import case, measured, run_of

L, D, S, V, B = 4, 64, 32, 256, 8
OPTIONS = {"dim": D, "depth": L, "heads": 4, "kv_heads": 4, "ffn_dim": 128, "vocab_size": V, "seq_len": S}


def mesh_case(strategy: str, world_size: int, batch: Batch) -> Case:
    return case(strategy, world_size, workload=PluginChoice("transformer", OPTIONS), batch=batch)


@pytest.mark.parametrize("micro", [1, 2])
def test_tensor_parallelism_reduces_four_times_a_block_and_twice_more(micro):
    found = TensorParallel().traffic(mesh_case("tp", 2, Batch(B, B // micro, micro)), 0)
    calls = {each.op: each.calls for each in found}
    assert calls == {"all_reduce": (4 * L + 2) * micro, "all_gather": micro}
    assert {each.dimension for each in found} == {"tp"}


def test_each_dimension_of_a_mesh_has_collectives_of_its_own():
    strategy = FullyShardedDataParallel(sharding="hybrid", mesh={"tp": 2})
    found = strategy.traffic(mesh_case("fsdp", 8, Batch(B, B // 4, 1)), 100_000)
    calls = {(each.dimension, each.op): each.calls for each in found}
    assert calls == {
        # the root stays gathered between the passes
        ("dp_shard", "all_gather"): 2 * L + 1,
        ("dp_shard", "reduce_scatter"): L + 1,
        ("dp_replicate", "all_reduce"): L + 1,
        ("tp", "all_reduce"): 4 * L + 2,
        ("tp", "all_gather"): 1,
    }
    assert strategy.mesh_sizes(8) == {"dp_replicate": 2, "dp_shard": 2, "tp": 2}


def step(theory: list[ExpectedCollective], *rows: tuple[str, str, int, int]) -> Record:
    """A trial of one step on rank 0 with rows of (operation, dimension, bytes, calls)."""
    found = [
        {"op": op, "dimension": over, "bytes": size, "group_size": 2, "dtype": "float32", "group": "0,1"}
        for op, over, size, calls in rows
        for _ in range(calls)
    ]
    placed = [{"rank": 0, "step": 0, "place": place, **row} for place, row in enumerate(found)]
    tables = {
        "collectives": placed,
        "collectives_theory": [{"rank": 0, **dataclasses.asdict(each)} for each in theory],
    }
    given = measured(case("fsdp", 4), comm_bytes_theory=sum(each.bytes for each in theory))
    return dataclasses.replace(given, tables=tables, effective={"parameters": 1000})


THEORY = [
    ExpectedCollective("all_reduce", 40_000.0, "tp", 10),
    ExpectedCollective("all_reduce", 8_000.0, "dp_replicate", None),
]


def test_calls_that_theory_has_not_are_told_unless_they_are_norms_and_flags():
    small = step(THEORY, ("all_reduce", "tp", 4000, 10), ("all_reduce", "tp", 8, 2))
    assert call_count_mismatches(small) == ""
    more = step(THEORY, ("all_reduce", "tp", 4000, 13), ("all_reduce", "tp", 8, 1))
    assert (
        call_count_mismatches(more)
        == "all_reduce over tp: 14 calls per step, theory: 10; 3 more without a known cause"
    )
    warns = [CommunicationView().has_warning(run_of(each)) for each in (small, more)]
    assert warns == [False, True]
    fewer = step(THEORY, ("all_reduce", "tp", 4000, 8), ("all_reduce", "dp_replicate", 4000, 9))
    assert (
        call_count_mismatches(fewer)
        == "all_reduce over tp: 8 calls per step, theory: 10; 2 fewer without a known cause"
    )


def test_an_operation_that_theory_does_not_name_is_told_unless_it_is_a_norm_or_a_flag():
    step_of_theory = ("all_reduce", "tp", 4000, 10), ("all_reduce", "dp_replicate", 8000, 1)
    told = "broadcast over tp: 3 calls per step, theory: 0; 3 more without a known cause"
    assert call_count_mismatches(step(THEORY, *step_of_theory, ("broadcast", "tp", 1300, 3))) == told
    assert call_count_mismatches(step(THEORY, *step_of_theory, ("broadcast", "tp", 8, 3))) == ""
    # of the copies theory counts no calls
    assert call_count_mismatches(step(THEORY, *step_of_theory, ("broadcast", "dp_replicate", 1300, 3))) == ""


def test_what_moves_over_another_dimension_than_theory_has_it_over_is_told():
    swapped = step(THEORY, ("all_reduce", "tp", 800, 10), ("all_reduce", "dp_replicate", 40_000, 1))
    found = compare_volume(swapped)
    assert found is not None and found.unexplained_share == 0, "the sum over dimensions is right"
    assert misplaced_traffic(swapped) == "31.2 KiB all_reduce went over dp_replicate instead of tp"
    (note,) = CommunicationView().table(run_of(swapped)).notes
    assert misplaced_traffic(swapped) in note
    assert (
        misplaced_traffic(
            step(THEORY, ("all_reduce", "tp", 4000, 10), ("all_reduce", "dp_replicate", 8000, 1))
        )
        == ""
    )


def test_theory_of_one_operation_over_two_dimensions_is_added_up():
    record = step(THEORY, ("all_reduce", "tp", 4000, 10), ("all_reduce", "dp_replicate", 8000, 1))
    found = compare_volume(record)
    assert found is not None and found.unexplained_share == 0
    assert "(all_reduce over tp 39.1 KiB and all_reduce over dp_replicate 7.81 KiB)" in volume_sentence(
        record
    )
    assert dimension_traffic(record) == [
        DimensionTraffic("dp_replicate", "all_reduce", 8000, 8000, 8000, 1, None, 0),
        DimensionTraffic("tp", "all_reduce", 40_000, 40_000, 40_000, 10, 10, 0),
    ]


def test_a_report_shows_the_dimensions_of_those_cases_that_have_several():
    record = step(THEORY, ("all_reduce", "tp", 4000, 10), ("all_reduce", "dp_replicate", 8000, 1))
    (chart,) = [chart for chart in _charts(record) if chart.id == "communication-mesh"]
    rows = [
        [row.value(name) for name in ("dimension", "op", "calls", "calls_theory")] for row in chart.table.rows
    ]
    assert rows == [["dp_replicate", "all_reduce", 1, None], ["tp", "all_reduce", 10, 10]]
    alone = step(THEORY[:1], ("all_reduce", "tp", 4000, 10))
    assert "communication-mesh" not in [chart.id for chart in _charts(alone)]


def test_records_that_know_no_mesh_are_read_as_ever():
    stored = [record for record in Run(Path(__file__).parents[2] / "frozen/run").records() if record.tables]
    assert stored
    assert [dimension_traffic(record) for record in stored] == [[]] * len(stored)


def _charts(record: Record) -> list[Chart]:
    found = chapters(run_of(record))
    return [chart for chapter in found for chart in chapter.charts]


@pytest.mark.train
@pytest.mark.deep
def test_real_engines_issue_just_as_many_collectives_as_theory_has(run_suite):
    done = run_suite(f"""
workload: {{transformer: {{{", ".join(f"{key}: {value}" for key, value in OPTIONS.items())}}}}}
batch: {{global_batch_size: 8, micro_batch_size: 2}}
optimizer: {{clip_grad_norm: 1.0}}
measure: {{warmup: 1, steps: 2, trials: 1, profile_steps: 1}}
launcher: {{kept: {{oversubscribe: true}}}}
world_sizes: [4]
strategies:
  - fsdp: {{sharding: [full, grad_op, hybrid]}}
  - tp: {{sequence_parallel: [false, true], loss_parallel: [false, true]}}
  - fsdp: {{mesh: {{tp: 2}}, sequence_parallel: [false, true]}}
  - fsdp: {{mesh: {{tp: 2}}, sharding: hybrid, reshard_root: true, reduce_each_micro_batch: false}}
""")
    assert done.code == 0, done.errors
    for record in Run(done.folder).records():
        found = compare_volume(record)
        assert found is not None and found.unexplained_share < UNEXPLAINED_TOLERANCE, record.case.name
        assert call_count_mismatches(record) == "", record.case.name
        sharing = [each for each in dimension_traffic(record) if each.measured > 1024]
        assert all(each.calls_theory is not None for each in sharing), record.case.name
