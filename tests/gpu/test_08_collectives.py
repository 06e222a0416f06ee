"""Collectives are counted on a GPU too, those that autograd issues from its device threads among them."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_runs import FEW, measured, work

from distbench.record import Record
from support.gpu_report import Check, Report


@pytest.fixture(scope="module")
def ran(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    suite = f"{work()}{FEW}precision: bf16\nmeasure: {{warmup: 1, steps: 2, trials: 1}}\n"
    return measured(tmp_path_factory.mktemp("counted"), suite, gpu_report)


@pytest.mark.minutes(4)
def test_a_group_of_one_moves_nothing(ran: dict[str, Record]) -> None:
    for label, record in ran.items():
        assert record.status == "measured", (label, record.reason)
        assert record.values["comm_calls"] == record.values["comm_bytes"] == 0, label


@pytest.mark.minutes(4)
def test_what_ddp_asks_for_in_its_backward_pass_is_seen(ran: dict[str, Record], check: Check) -> None:
    for label, record in ran.items():
        rows = of_a_step(record)
        asked = {
            op: sum(row["bytes"] for row in rows if row["op"] == op) for op in {row["op"] for row in rows}
        }
        check.figure(f"{label} asked for", str(asked))
    calls = [row for row in of_a_step(ran["ddp"]) if row["op"] == "all_reduce"]
    # its gradients, in fp32, in groups of one
    assert sum(row["bytes"] for row in calls) == 4 * ran["ddp"].effective["parameters"]
    assert {row["group_size"] for row in calls} == {1}


def of_a_step(record: Record) -> list[dict[str, Any]]:
    """Collectives of the first step of which there are any."""
    return [row for row in record.tables["collectives"] if row["step"] == 0]
