"""Controller side of the connections to agents (``distbench.worker.agent`` is the other side).

The controller listens only while they connect.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

from distbench.ipc.file_transfer import FileReceiver, TransferError
from distbench.ipc.messages import (
    CONTROLLER_ROLE,
    SILENCE_TIMEOUT_S,
    AuthenticatedChannel,
    ChannelError,
    wait_readable,
)
from distbench.launchers.base import LaunchError, LaunchSpec, NodeLostError
from distbench.launchers.nodes import Node, StartedAgents, node_labels
from distbench.system import clock

# for an answer that takes an agent milliseconds, and for the end of all ranks
_ANSWER_TIMEOUT_S = 30.0
_POLL_S = 0.25
_NODE_FACTS = ("name", "address", "distbench", "visible_gpus")


class AgentConnection:
    """Connection to one agent."""

    def __init__(self, channel: AuthenticatedChannel) -> None:
        self._channel = channel
        self._unread: list[dict[str, Any]] = []
        self.name, self.address = "", ""
        self.facts: dict[str, Any] = {}
        self.lacks_run_folder = False
        """True if its node does not see the run's folder, so that files come over the connection."""
        self.has_own_cache = False
        """True if its node does not see the cache of this host."""
        self.log: Path | None = None
        """File of its output, such as a traceback; None: unknown."""
        self._receiver: FileReceiver | None = None
        self._expected: set[str] = set()
        """Paths in the run's folder of files that its ranks leave for others, and prefixes of the names of
        all other files that they write.
        """
        self._chunks_received = 0

    @property
    def machine(self) -> dict[str, Any]:
        """Facts of its machine by ``machine_facts``, without those that name the node."""
        return {key: fact for key, fact in self.facts.items() if key not in _NODE_FACTS}

    def receive_files_into(self, root: Path) -> None:
        """Store files from its copy of the run's folder in *root*, that folder here."""
        if self._receiver is None:
            self._receiver = FileReceiver(root, self._is_expected)

    def expect(self, folder: PurePosixPath, ranks: range, output_files: Iterable[str]) -> None:
        """From now on, accept files that its *ranks* write into *folder*, and *output_files*."""
        self._expected |= {*output_files, *(f"{folder / f'rank{rank}'}." for rank in ranks)}

    def _is_expected(self, name: str) -> bool:
        """True if *name* is a file of its ranks, and not one of others or of the run itself."""
        path = PurePosixPath(name)
        return name in self._expected or f"{path.parent / path.name.partition('.')[0]}." in self._expected

    def greet(self) -> None:
        """Receive its first message, which identifies it.

        Raises:
            LaunchError: there is none.
        """
        self.facts = self.wait_for("node")["node"]
        self.name, self.address = self.facts["name"], self.facts["address"]
        self.send({"welcome": clock.now()})

    @property
    def seconds_silent(self) -> float:
        """Seconds since its last heartbeat; it sends one every second."""
        return self._channel.seconds_silent()

    def send(self, request: dict[str, Any], data: bytes = b"") -> None:
        """Send *request*, followed by *data*."""
        self._channel.send(request, data)

    def fileno(self) -> int:
        """File descriptor, for ``select``."""
        return self._channel.fileno()

    @property
    def has_unread(self) -> bool:
        """True if there are unread events."""
        return bool(self._unread)

    def read_events(self) -> list[dict[str, Any]]:
        """Events since the last call.

        Raises:
            LaunchError: the agent is lost.
        """
        unread, self._unread = self._unread, []
        return [*unread, *self._receive(0)]

    def wait_for(self, *words: str, seconds: float = _ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Wait up to *seconds* for the next event with one of *words*; buffer the others.

        Raises:
            LaunchError: the agent is lost, or there is no answer.
        """
        end, came = time.monotonic() + seconds, self._chunks_received
        while True:
            if came != self._chunks_received:
                # the answer follows the files that are in transfer
                end, came = time.monotonic() + seconds, self._chunks_received
            for event in self._unread:
                if any(word in event for word in words):
                    self._unread.remove(event)
                    return event
            if (left := end - time.monotonic()) <= 0:
                raise LaunchError(f"the agent on {self.name or 'a node'} does not answer")
            self._unread += self._receive(min(left, _POLL_S))

    def wait_stopped(self) -> list[dict[str, Any]]:
        """Wait until no rank of its trial is left; return the sampled rows, in chunks.

        Other unread events of that trial are dropped.

        Raises:
            LaunchError: the agent is lost, or there is no answer.
        """
        self.wait_for("stopped")
        pieces = [event for event in self._unread if "samples" in event]
        self._unread.clear()
        if self._receiver:
            self._receiver.close()
        return pieces

    def close(self) -> None:
        """End the connection; the agent then ends all processes of the run on its node."""
        self._channel.close()
        if self._receiver:
            self._receiver.close()

    def _receive(self, seconds: float) -> list[dict[str, Any]]:
        try:
            events = self._channel.receive(seconds)
        except ChannelError as error:
            raise LaunchError(f"the agent on {self.name}: {error}") from error
        if not self._channel.alive and not events:
            where = f". Agent output: {self.log}" if self.log else ""
            raise NodeLostError(f"lost the agent on {self.name}, or the node itself{where}")
        if self._channel.seconds_silent() > SILENCE_TIMEOUT_S:
            raise NodeLostError(
                f"no heartbeat from the agent on {self.name} for {SILENCE_TIMEOUT_S:g} s: the agent or "
                "the node hangs"
            )
        return [event for event in events if not self._take_chunk(event)]

    def _take_chunk(self, event: dict[str, Any]) -> bool:
        """Store the chunk of a file in *event*; False if it is none."""
        if self._receiver is None or "piece" not in event:
            return False
        try:
            self._receiver.receive(event)
        except TransferError as error:
            raise LaunchError(f"{self.name}: {error}") from error
        self._chunks_received += 1
        return True


class AgentListener:
    """Listens until every agent of a launch has connected."""

    def __init__(self, token: str, port: int = 0) -> None:
        """Listen.

        Args:
            port: Port to which the agents connect; 0: any that is free.

        Raises:
            LaunchError: another process listens there.
        """
        self._token = token
        try:
            self._listener = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            raise LaunchError(f"can't listen for agents on port {port}: {error.strerror}") from error
        self._connected: list[AgentConnection] = []
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def addresses(self) -> str:
        """All addresses of this host, with the port: each node finds out which it can reach."""
        port = self._listener.getsockname()[1]
        hosts = [
            each.address
            for of_one in psutil.net_if_addrs().values()
            for each in of_one
            if each.family == socket.AF_INET
        ]
        # the loopback address leads to the agent's own host, so it comes last
        return ",".join(f"{host}:{port}" for host in sorted(hosts, key=lambda host: host.startswith("127.")))

    def accept_all(
        self, nodes: Sequence[Node], started: StartedAgents, launch: LaunchSpec, seconds: float
    ) -> list[AgentConnection]:
        """Accept the agents on *nodes*; return them in this order.

        Raises:
            LaunchError: not all have connected within *seconds*.
        """
        end, why = time.monotonic() + seconds, None
        while len(self._connected) < len(nodes) and time.monotonic() < end and not launch.is_cancelled():
            if why := started.failure():
                break
            if wait_readable([self._listener], _POLL_S):
                # strangers may have taken all descriptors, or have disconnected
                with suppress(OSError):
                    connection = self._listener.accept()[0]
                    threading.Thread(target=self._accept, args=[connection], daemon=True).start()
        with self._lock:
            self._is_over, met = True, self._connected
        if len(met) >= len(nodes):
            return _ordered(met, nodes)
        for agent in met:
            agent.close()
        raise LaunchError(why or f"{_missing_text(met, nodes)} within {seconds:g} s")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self, connection: socket.socket) -> None:
        # connections that are no agents of this run are dropped, and not waited for
        with suppress(ChannelError, LaunchError):
            agent = AgentConnection(AuthenticatedChannel(connection, self._token, CONTROLLER_ROLE))
            agent.greet()
            with self._lock:
                if not self._is_over:
                    self._connected.append(agent)
                    return
            agent.close()


def _missing_text(agents: Sequence[AgentConnection], nodes: Sequence[Node]) -> str:
    came = [agent.name for agent in agents]
    if not all(node.name for node in nodes):
        return f"only {len(came)} of {len(nodes)} agents connected ({', '.join(came) or 'none'})"
    return f"no agent connected from {', '.join(node.name for node in nodes if node.name not in came)}"


def _ordered(agents: list[AgentConnection], nodes: Sequence[Node]) -> list[AgentConnection]:
    """Sort *agents* like *nodes*; by name where the engine has chosen the nodes.

    Raises:
        LaunchError: they are not one on each node; all are ended.
    """
    came = sorted(agent.name for agent in agents)
    names = [node.name for node in nodes] if all(node.name for node in nodes) else sorted(set(came))
    if sorted(names) == came:
        return sorted(agents, key=lambda agent: names.index(agent.name))
    for agent in agents:
        agent.close()
    raise LaunchError(
        f"agents connected from {', '.join(came)}; expected one from each of {', '.join(node_labels(nodes))}"
    )
