"""The link between nodes is named where it holds a training back, and only there."""

from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.inter_node import BOTTLENECK_SHARE
from distbench.analysis.wording.findings import all_findings
from distbench.analysis.wording.recommendation import recommend
from distbench.record import Record
from support.records import case, measured, run_of

DDP, FSDP = case("ddp"), case("fsdp")
TIMES = {
    "profile_step_s": 10.0,
    "comm_exposed_s": 7.0,
    "comm_between_exposed_s": 6.0,
    "comm_inside_exposed_s": 0.5,
    "comm_between_busbw": 25e6,
}


def call(size: float, busbw: float) -> dict[str, Any]:
    place = {"rank": 0, "step": 0, "place": 0, "op": "all_reduce", "group_size": 2, "nodes": 2}
    return {**place, "dtype": "float32", "bytes": size, "transfer_s": size / busbw}


def trial(best: float = 26e6, size: float = 8e6, of: Any = DDP, **changes: float) -> Record:
    values = {**TIMES, **changes}
    return replace(measured(of, **values), tables={"collectives": [call(size, best)]})


def test_the_first_sentence_names_the_link_that_holds_training_back():
    told = recommend(run_of(trial()))
    assert told.headline.startswith("Train with ddp on 2 devices, limited by the link between nodes: 1,000")
    assert told.reasons[0] == (
        "ddp is limited by the link between nodes: 60% of a profiled step is exposed transfer between "
        "nodes, at 200 Mbit/s bus bandwidth."
    )


def test_messages_far_below_what_the_link_carries_wait_for_its_latency():
    told = recommend(run_of(trial(best=120e6)))
    assert "limited by latency between nodes" in told.headline
    assert "at 200 Mbit/s bus bandwidth, where large messages reach 960 Mbit/s" in told.reasons[0]


def test_without_a_large_message_it_is_not_said_whether_bandwidth_or_latency_is_the_limit():
    told = recommend(run_of(trial(size=1e5)))
    assert "limited by communication between nodes" in told.headline
    assert told.reasons[0].endswith("because no message has 1.00 MiB or more.")


@pytest.mark.parametrize(
    "changes",
    [
        {"comm_between_exposed_s": 10 * BOTTLENECK_SHARE - 0.01},
        {"comm_exposed_s": 9.0, "comm_between_exposed_s": 3.0, "comm_inside_exposed_s": 4.0},
        # it waits for a slow rank most of that time
        {"comm_exposed_s": 9.0, "comm_between_exposed_s": 3.0, "comm_inside_exposed_s": 0.0},
    ],
    ids=["hidden", "inside nodes", "waiting"],
)
def test_a_training_that_waits_for_something_else_is_not_held_back_by_the_link(changes):
    assert run_of(trial(**changes)).inter_node_bottlenecks == {}


def test_on_one_node_there_is_no_link_to_name():
    local = measured(DDP, profile_step_s=10.0, comm_exposed_s=9.0, comm_inside_exposed_s=9.0)
    assert run_of(local).inter_node_bottlenecks == {}


def test_the_findings_name_all_that_are_held_back_and_the_worst_with_its_numbers():
    found = all_findings(run_of(trial(), trial(of=FSDP, comm_between_exposed_s=7.0)))
    assert any(each.startswith("fsdp is limited") and each.endswith("; so is ddp.") for each in found)
