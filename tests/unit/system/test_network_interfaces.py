"""Interfaces of sockets, as the variables of gloo and NCCL select them."""

import pytest

from distbench.system.network_interfaces import (
    InterfaceError,
    NetworkInterface,
    NodeSockets,
    network_interfaces,
    selected_interfaces,
    shared_address_text,
)

LO = NetworkInterface("lo", ("127.0.0.1", "::1"), is_up=True)
ETH0 = NetworkInterface("eth0", ("10.0.0.1", "fe80::1%eth0"), is_up=True)
ETH1 = NetworkInterface("eth1", ("10.1.0.1",), is_up=True)
DOCKER = NetworkInterface("docker0", ("172.17.0.1",), is_up=True)
HOST = (LO, ETH0, ETH1, DOCKER, NetworkInterface("ib0", (), is_up=False))


def names_for(variable: str, value: str) -> list[str]:
    (selected,) = selected_interfaces(HOST, {variable: value}, "cuda").values()
    return [each.name for each in selected]


@pytest.mark.parametrize(
    ("value", "names"), [("eth0", ["eth0"]), ("eth1,eth0", ["eth1", "eth0"]), ("eth0,", ["eth0"])]
)
def test_gloo_takes_whole_names(value, names):
    assert names_for("GLOO_SOCKET_IFNAME", value) == names


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0,docker0", ["eth0", "docker0"]),
        ("^docker,lo", ["eth0", "eth1"]),
        ("^=eth0", ["lo", "eth1", "docker0"]),
        ("eth1:5000", ["eth1"]),
    ],
)
def test_nccl_takes_beginnings_of_names_and_their_complement(value, names):
    assert names_for("NCCL_SOCKET_IFNAME", value) == names


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("GLOO_SOCKET_IFNAME", "eth7", "there is no interface eth7"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth7", "there is no interface eth7"),
        ("GLOO_SOCKET_IFNAME", "eth", "there is no interface eth"),
        ("GLOO_SOCKET_IFNAME", ",eth0", "there is no interface without a name"),
        ("GLOO_SOCKET_IFNAME", "eth0, eth1", "gloo takes names without spaces"),
        ("GLOO_SOCKET_IFNAME", "^docker0,lo", "gloo takes names only, ^ and = are for NCCL"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "gloo takes names only, ^ and = are for NCCL"),
        ("GLOO_SOCKET_IFNAME", "ib0", "ib0 has no IP address"),
        ("NCCL_SOCKET_IFNAME", "ib", "no interface with an IP address matches"),
        ("NCCL_SOCKET_IFNAME", "=eth", "no interface with an IP address matches"),
        ("NCCL_SOCKET_IFNAME", "^eth,docker,lo", "no interface with an IP address matches"),
    ],
)
def test_a_value_that_selects_nothing_usable_is_named_with_what_there_is(variable, value, told):
    with pytest.raises(InterfaceError) as error:
        selected_interfaces(HOST, {variable: value}, "cuda")
    assert str(error.value).startswith(f"{variable} = {value}: {told}; ")
    assert str(error.value).endswith(": docker0, eth0, eth1, lo")


@pytest.mark.parametrize(
    ("variables", "device"),
    [({}, "cuda"), ({"GLOO_SOCKET_IFNAME": ""}, "cpu"), ({"NCCL_SOCKET_IFNAME": "eth7"}, "cpu")],
    ids=["unset", "empty", "not used on CPUs"],
)
def test_a_variable_without_effect_selects_nothing(variables, device):
    assert selected_interfaces(HOST, variables, device) == {}


def test_a_host_without_loopback_is_refused_with_the_remedy():
    down = NetworkInterface("lo", ("127.0.0.1",), is_up=False)
    with pytest.raises(InterfaceError, match=r"lo is down.* ip link set lo up"):
        selected_interfaces([down, ETH0], {}, "cpu")


def test_the_loopback_interface_of_this_host_is_found():
    (loopback,) = [each for each in network_interfaces() if each.name == "lo"]
    assert loopback.is_up
    assert loopback.addresses[0] == "127.0.0.1"


def test_two_nodes_with_the_same_address_on_an_interface_are_named():
    nodes = [
        NodeSockets("a", "10.0.0.1", {"GLOO_SOCKET_IFNAME": [ETH1, DOCKER]}),
        NodeSockets("b", "10.0.0.2", {"GLOO_SOCKET_IFNAME": [DOCKER]}),
    ]
    told = shared_address_text(nodes)
    assert told.startswith(
        "GLOO_SOCKET_IFNAME selects docker0 on a and docker0 on b, which have the same address 172.17.0.1"
    )
    assert told.endswith("with 10.0.0.1 on a and 10.0.0.2 on b")


@pytest.mark.parametrize(
    "nodes",
    [
        [
            NodeSockets("a", "10.0.0.1", {"GLOO_SOCKET_IFNAME": [ETH0]}),
            NodeSockets("b", "10.0.0.2", {"GLOO_SOCKET_IFNAME": [ETH1]}),
        ],
        [
            NodeSockets("near", "127.0.0.1", {"GLOO_SOCKET_IFNAME": [LO]}),
            NodeSockets("far", "127.0.0.1", {"GLOO_SOCKET_IFNAME": [LO]}),
        ],
        [
            NodeSockets("a", "10.0.0.1", {"NCCL_SOCKET_IFNAME": [ETH0, DOCKER]}),
            NodeSockets("b", "10.0.0.2", {"NCCL_SOCKET_IFNAME": [ETH1, DOCKER]}),
        ],
    ],
    ids=["other addresses", "agents of one host", "further interfaces of NCCL"],
)
def test_nodes_that_reach_each_other_are_let_through(nodes):
    assert shared_address_text(nodes) == ""
