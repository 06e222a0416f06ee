"""Findings in scripts, on tables as ranks leave them: each with its number, and none without a cause."""

import dataclasses
from typing import Any

import pytest

from distbench.analysis.script_findings import script_findings
from distbench.core.case import Batch
from distbench.record import Record
from support.records import case, measured

MIB = 2**20


def of_script(
    *ranks: dict[str, Any], reduced: tuple[int, ...] = (4 * MIB,), accumulated: int = 1, **changes: Any
) -> Record:
    """A record of two ranks of DDP without a mistake; *ranks* changes what they tell."""
    rows = [
        {"rank": rank, "rows": f"a{rank} b{rank}", "parameter_digest": "one", "gradient_bytes": 4 * MIB}
        for rank in range(2)
    ]
    told = [{**row, **change} for row, change in zip(rows, ranks or ({}, {}), strict=True)]
    calls = [{"rank": 0, "step": 0, "op": "all_reduce", "bytes": size} for size in reduced]
    record = measured(case(batch=Batch(8 * accumulated, 4, accumulated)))
    tables = {"script_ranks": told, "collectives": calls, **changes.pop("tables", {})}
    samples = {"work_s": [[0.1] * 3, [0.1] * 3], **changes.pop("samples", {})}
    return dataclasses.replace(record, tables=tables, samples=samples, **changes)


def found(record: Record) -> dict[str, str]:
    return {finding.kind: finding.sentence for finding in script_findings(record)}


def test_a_script_without_a_mistake_has_no_finding():
    assert found(of_script()) == {}
    # once after all micro-batches, and twelve numbers to log
    assert found(of_script(reduced=(4 * MIB, *[4] * 12), accumulated=4)) == {}


def test_a_record_of_a_suite_has_no_finding():
    assert script_findings(measured(case())) == []


def test_equal_rows_are_found_unless_ranks_share_them_by_design():
    assert found(of_script({"rows": "x y z"}, {"rows": "w x y"})) == {
        "same-rows": "Ranks 0 and 1 train on the same rows (67% of those of their first batches)"
    }
    assert found(of_script({"rows": "x y", "shares_rows": 1}, {"rows": "x y", "shares_rows": 1})) == {}
    assert found(of_script({"rows": ""}, {"rows": ""})) == {}
    # one of four by chance
    assert found(of_script({"rows": "x a b c"}, {"rows": "x d e f"})) == {}


def test_replicas_apart_are_found():
    told = found(of_script({}, {"parameter_digest": "other"}))
    assert told == {
        "replicas-apart": "After the measured steps, 1 rank of 2 (1) had other parameters than the rest"
    }


def test_parameters_without_a_gradient_are_found():
    told = found(of_script({}, {"unused_count": 2, "unused_parameters": "head.weight head.bias"}))
    assert told == {"no-gradient": "2 trained parameters got no gradient on rank 1 (head.weight, head.bias)"}


@pytest.mark.parametrize(("accumulated", "is_found"), [(4, True), (1, False)])
def test_a_reduction_of_each_micro_batch_is_found(accumulated, is_found):
    told = found(of_script(reduced=(4 * MIB,) * 4, accumulated=accumulated))
    sentence = "DDP reduced the gradients 4.0 times in a step of 4 backward passes"
    assert told == ({"reduces-each-micro-batch": sentence} if is_found else {})


def test_small_buckets_are_found():
    told = found(of_script(reduced=(2**17,) * 32))
    assert told == {"small-buckets": "DDP reduced the gradients in 32 calls of 128 KiB on average"}


def test_a_slow_rank_is_found_if_it_is_slow_in_each_step_of_a_quiet_machine():
    slow = {"work_s": [[0.1, 0.1, 0.1], [0.3, 0.3, 0.3]]}
    assert found(of_script(samples=slow)) == {
        "slow-rank": "Rank 1 works 3.0 times as long in a step as the others, which wait for it"
    }
    assert found(of_script(samples=slow, degraded="busy")) == {}
    assert found(of_script(samples={"work_s": [[0.1, 0.1, 0.1], [0.9, 0.1, 0.1]]})) == {}
    # three steps may have a rank 1.3 times slower by chance, six seldom
    assert found(of_script(samples={"work_s": [[0.1] * 3, [0.13] * 3]})) == {}
    assert [*found(of_script(samples={"work_s": [[0.1] * 6, [0.13] * 6]}))] == ["slow-rank"]


def test_memory_that_grows_from_step_to_step_is_found_and_a_cache_is_not():
    leak = [100.0 * MIB + 2 * MIB * step for step in range(12)]
    cache = [100.0 * MIB, 120.0 * MIB, *[130.0 * MIB] * 10]
    told = found(of_script(samples={"script_held_bytes": [cache, leak]}))
    assert told == {"growing-memory": "The memory of rank 1 grew by 16.0 MiB over 12 steps, 2.00 MiB a step"}
    assert found(of_script(samples={"script_held_bytes": [cache, cache]})) == {}


def test_steps_that_become_slower_are_found_on_a_quiet_machine():
    slower = {"step_s": [[0.1 + 0.003 * step + 0.004 * (step % 3) for step in range(40)]] * 2}
    assert list(found(of_script(samples=slower))) == ["slower-steps"]
    assert found(of_script(samples=slower, degraded="busy")) == {}
    assert found(of_script(samples={"step_s": [[0.1, 0.11] * 10] * 2})) == {}


@pytest.mark.parametrize(("device", "waits"), [("cpu", "a GPU would wait there"), ("cuda", "the host waits")])
def test_lines_that_read_values_are_named(device, waits):
    reads = [{"rank": rank, "place": "train.py:7", "calls": 2} for rank in range(2)]
    record = of_script(tables={"script_value_reads": reads})
    record = dataclasses.replace(record, case=dataclasses.replace(record.case, device=device))
    told = found(record)
    assert waits in told["value-read"] and told["value-read"].endswith("train.py:7 (2x)")
