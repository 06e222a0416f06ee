"""Counters of network interfaces in the timed window, and what theory says must cross between nodes."""

import socket
from pathlib import Path
from typing import Any

import pytest

from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.communication.traffic import inter_node_bytes, parse_ranks
from distbench.metrics.network import Network, counters
from support.records import case

FOUR_NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


def interface_counters(sys: Path, words: int) -> dict[str, counters.InterfaceCounter]:
    """Counters where a made-up InfiniBand port has sent that many *words*, and received twice as many."""
    port = sys / "infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True, exist_ok=True)
    (port / "port_xmit_data").write_text(f"{words}\n")
    (port / "port_rcv_data").write_text(f"{2 * words}\n")
    # one that is down has no counters
    (sys / "infiniband/mlx5_1/ports/1").mkdir(parents=True, exist_ok=True)
    return counters.read_counters("lo", sys)


def test_counters_are_those_of_the_interface_and_of_all_infiniband_ports_in_bytes(tmp_path):
    before = interface_counters(tmp_path, 10)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(5000), ("127.0.0.1", 9))
    moved = counters.counter_differences(before, interface_counters(tmp_path, 15))
    assert moved.keys() == {"lo", "mlx5_0/1"}
    assert min(moved["lo"].sent, moved["lo"].received) >= 5000
    assert moved["mlx5_0/1"] == counters.InterfaceCounter("infiniband", 20, 40)


def test_an_interface_that_is_not_there_is_refused():
    with pytest.raises(LookupError, match="eth99"):
        counters.read_counters("eth99")


def test_one_hop_of_a_ring_leaves_each_node():
    sent = [inter_node_bytes("all_reduce", 1000, rank, FOUR_NODES) for rank in range(4)]
    assert sent == [0, 2 * 3 / 4 * 1000, 0, 2 * 3 / 4 * 1000]
    assert [inter_node_bytes("all_gather", 1000, rank, FOUR_NODES) for rank in range(4)] == [0, 750, 0, 750]
    assert [inter_node_bytes("all_reduce", 1000, rank, {0: "a", 1: "a"}) for rank in (0, 1)] == [0, 0]


def test_an_all_to_all_sends_what_is_for_other_nodes_and_of_a_send_nobody_knows_where_it_goes():
    assert inter_node_bytes("all_to_all", 1000, 0, FOUR_NODES) == 500
    assert inter_node_bytes("send", 1000, 0, FOUR_NODES) is None


@pytest.mark.parametrize(("text", "ranks"), [("0-3", [0, 1, 2, 3]), ("0,2", [0, 2]), ("5", [5])])
def test_a_group_is_read_back_from_its_text(text, ranks):
    assert parse_ranks(text) == ranks


def trial(*rows: dict[str, Any], **changes: Any) -> TrialData:
    calls = [
        {"rank": rank, "step": step, "group": "0-3", "group_size": 4, "ran": "all_reduce", "bytes": 1000}
        for rank in range(4)
        for step in range(3)
    ]
    given = {
        "case": case("ddp", 4),
        "tokens_per_sample": 1,
        "samples": {"step_s": [[0.1] * 10] * 4},
        "phases": {},
        "tables": {"network": [*rows], "collectives": calls},
        "nodes": {"a": [0, 1], "b": [2, 3]},
    }
    return TrialData(**{**given, **changes})


def row(rank: int, sent: int, received: int, interface: str = "eth0") -> dict[str, Any]:
    return {"rank": rank, "interface": interface, "sent": sent, "received": received, "reason": None}


def test_the_node_that_sends_most_stands_beside_theory():
    found = Network().summary(
        trial(row(0, 16_000, 15_000), row(2, 15_000, 15_500), row(2, 2_000, 0, "mlx5_0/1"))
    )
    assert found == {"node_sent_bytes": 1700, "node_received_bytes": 1550, "node_bytes_theory": 1500}


def test_a_node_whose_interface_is_not_known_leaves_no_number_but_the_reason():
    found = Network().summary(
        trial(row(0, 16_000, 15_000), {"rank": 2, "reason": "GLOO_SOCKET_IFNAME is not set"})
    )
    assert str(found["node_sent_bytes"]) == "GLOO_SOCKET_IFNAME is not set"
    assert found["node_bytes_theory"] == 1500
    lost = Network().summary(trial(row(0, 16_000, 15_000)))
    assert str(lost["node_sent_bytes"]) == "some nodes have not read their counters"


def test_on_one_node_nothing_crosses():
    with pytest.raises(NotAvailable, match="all ranks are on one node"):
        Network().summary(trial(nodes={}))
