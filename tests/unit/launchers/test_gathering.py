"""The controller's port while agents gather: who else connects there is dropped, and holds up nobody."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from distbench.ipc.channels import (
    AGENT_ROLE,
    AuthenticatedChannel,
    ChannelError,
    connect_to_controller,
    new_token,
)
from distbench.ipc.messages import NodeFacts
from distbench.launchers.agents import AgentConnection, AgentListener
from distbench.launchers.base import LaunchError, never_cancelled
from distbench.launchers.nodes import Node, StartedAgents
from distbench.system.network_interfaces import network_interfaces
from support.agent_channels import send_encoded

NODES = [Node("near", 1), Node("far", 1)]


class NoHandle(StartedAgents):
    """What started the agents says nothing of them."""

    def failure(self) -> str | None:
        return None

    def stop(self) -> None:
        """Nothing was started."""


class AgentPort:
    """A controller that waits for two agents, and who connects to it."""

    def __init__(self, answer_timeout_s: float = 30.0) -> None:
        self.token = new_token()
        self.gathering = AgentListener(self.token, answer_timeout_s=answer_timeout_s)
        self.stack = ExitStack()
        self.stack.callback(self.gathering.close)

    def connected(self) -> socket.socket:
        port = int(self.gathering.addresses.rpartition(":")[2])
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", port)))

    def join(self, name: str, token: str = "") -> None:
        """Connect as an agent does."""
        self.authenticated(token or self.token).send(NodeFacts(name, "127.0.0.1"))

    def authenticated(self, token: str) -> AuthenticatedChannel:
        """Connect as an agent does, and say nothing yet."""
        channel = AuthenticatedChannel(self.connected(), token, AGENT_ROLE)
        self.stack.callback(channel.close)
        return channel

    def gathered(self, seconds: float) -> list[AgentConnection]:
        agents = self.gathering.accept_all(NODES, NoHandle(), seconds, never_cancelled)
        for agent in agents:
            self.stack.callback(agent.close)
        return agents


@pytest.fixture
def port() -> Iterator[AgentPort]:
    made = AgentPort()
    yield made
    made.stack.close()


def test_an_agent_that_is_slow_to_introduce_itself_may_come_again():
    port = AgentPort(answer_timeout_s=2.0)

    def connect() -> None:
        slow = port.authenticated(port.token)
        # until the listener gives it up
        while slow.alive:
            slow.receive(0.1)
        port.join("near")
        port.join("far")

    with port.stack:
        threading.Thread(target=connect, daemon=True).start()
        assert [agent.name for agent in port.gathered(30)] == ["near", "far"]


def stay_silent(port: AgentPort) -> None:
    """Connects, says nothing, and stays."""
    port.connected()


def send_garbage(port: AgentPort) -> None:
    """Speaks another protocol."""
    port.connected().sendall(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n" * 99)


def join_with_other_token(port: AgentPort) -> None:
    """Knows another token."""
    with suppress(ChannelError):
        port.join("near", new_token())


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param(stray, marks=pytest.mark.drill(f"while agents gather, one connects who {told}"), id=told)
        for stray, told in (
            (stay_silent, "says nothing"),
            (send_garbage, "speaks another protocol"),
            (join_with_other_token, "knows another token"),
        )
    ],
)
def test_who_is_no_agent_of_the_run_is_dropped_and_waited_for_by_nobody(port, stray):
    def connect() -> None:
        for _ in range(3):
            stray(port)
        port.join("far")
        stray(port)
        port.join("near")

    threading.Thread(target=connect, daemon=True).start()
    # one that is silent has 5 s for its handshake
    assert [agent.name for agent in port.gathered(4.5)] == ["near", "far"]


def test_agents_of_another_run_do_not_count(port):
    other = new_token()

    def connect() -> None:
        port.join("near")
        for name in ("near", "far"):
            with suppress(ChannelError):
                port.join(name, other)

    threading.Thread(target=connect, daemon=True).start()
    with pytest.raises(LaunchError, match=r"no agent connected from far within 2 s"):
        port.gathered(2)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_agents_come_by_either_version_of_ip(port, host):
    if host not in [address for each in network_interfaces() for address in each.addresses]:
        pytest.skip(f"this host has no address {host}")
    (address,) = [each for each in port.gathering.addresses.split(",") if host in each]

    def connect() -> None:
        for name in ("near", "far"):
            wire = connect_to_controller([address], port.token)
            port.stack.callback(wire.close)
            wire.send(NodeFacts(name, wire.address))

    threading.Thread(target=connect, daemon=True).start()
    assert [agent.node.address for agent in port.gathered(10)] == [host, host]


def test_a_version_that_speaks_another_protocol_is_named_by_address(port):
    def connect() -> None:
        port.join("near")
        port.connected().sendall(b"distbench\1\2")

    threading.Thread(target=connect, daemon=True).start()
    told = r"from far within 2 s; 127\.0\.0\.1: the other end speaks protocol 258, this end protocol"
    with pytest.raises(LaunchError, match=told):
        port.gathered(2)


@pytest.mark.parametrize("first", [b"no JSON", b'{"type": "NodeFacts"}'])
@pytest.mark.drill("an agent introduces itself by what is no message")
def test_an_agent_that_can_not_introduce_itself_is_named_and_the_others_are_not_waited_for(port, first):
    def connect() -> None:
        send_encoded(port.authenticated(port.token), first)

    threading.Thread(target=connect, daemon=True).start()
    with pytest.raises(LaunchError, match=r"^the agent on 127\.0\.0\.1: (a|invalid) message"):
        port.gathered(60)
