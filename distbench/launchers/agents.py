"""Controller side of the connections to agents (``distbench.worker.agent`` is the other side).

The controller listens only while they connect. Nodes without the run's folder get its files from it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from distbench.ipc.channels import SILENCE_TIMEOUT_S, AuthenticatedChannel, ChannelError
from distbench.ipc.file_transfer import FileReceiver, TransferError, cached_sha256, file_chunks
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.listener import ChannelListener
from distbench.ipc.messages import (
    FileChunk,
    FileFound,
    FindFile,
    LaunchFailed,
    LaunchStopped,
    Message,
    MissingFiles,
    NodeFacts,
    OfferFiles,
    SampledRows,
    SamplerFailure,
    Welcome,
)
from distbench.ipc.trial_files import DISK_FULL_ERRNOS
from distbench.launchers.base import CancelCheck, LaunchError, NodeLostError
from distbench.launchers.nodes import Node, StartedAgents, node_labels
from distbench.system import clock

# for an answer that takes an agent milliseconds, and for the end of all ranks
_ANSWER_TIMEOUT_S = 30.0
# for the digests of all files that a node has, which may be large
_DIGEST_TIMEOUT_S = 600.0
_POLL_S = 0.25

M = TypeVar("M", bound=Message)


class AgentTimeoutError(LaunchError):
    """An agent has not answered in time."""


class AgentConnection:
    """Connection to one agent."""

    def __init__(self, channel: AuthenticatedChannel) -> None:
        self._channel = channel
        self._unread: list[Message] = []
        # named by its address until it tells its name
        self.node = NodeFacts(channel.peer, "")
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
    def name(self) -> str:
        """Name of its node; before ``greet`` its address."""
        return self.node.name

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

    def greet(self, seconds: float = _ANSWER_TIMEOUT_S) -> None:
        """Receive its first message, which identifies it, within *seconds*.

        Raises:
            NodeLostError: there is none, because its connection has ended.
            AgentTimeoutError: there is none in time.
            LaunchError: it can't be decoded.
        """
        self.node = self.wait_for(NodeFacts, seconds=seconds)
        self.send(Welcome(clock.now()))

    @property
    def seconds_silent(self) -> float:
        """Seconds since its last heartbeat; it sends one every second."""
        return self._channel.seconds_silent()

    def send(self, request: Message) -> None:
        """Send *request*."""
        self._channel.send(request)

    def fileno(self) -> int:
        """File descriptor, for ``select``."""
        return self._channel.fileno()

    @property
    def has_unread(self) -> bool:
        """True if there are unread events."""
        return bool(self._unread)

    def read_events(self) -> list[Message]:
        """Events since the last call.

        Raises:
            LaunchError: the agent is lost.
        """
        unread, self._unread = self._unread, []
        return [*unread, *self._receive(0)]

    def wait_for(self, kind: type[M], *, seconds: float = _ANSWER_TIMEOUT_S, may_fail: bool = False) -> M:
        """Wait up to *seconds* for the next event of this *kind*; buffer the others.

        Args:
            may_fail: A ``LaunchFailed`` may come in its place.

        Raises:
            LaunchError: the agent is lost, there is no answer, or a failure came.
        """
        end, came = time.monotonic() + seconds, self._chunks_received
        while True:
            if came != self._chunks_received:
                # the answer follows the files that are in transfer
                end, came = time.monotonic() + seconds, self._chunks_received
            for event in self._unread:
                if isinstance(event, kind):
                    self._unread.remove(event)
                    return event
                if may_fail and isinstance(event, LaunchFailed):
                    self._unread.remove(event)
                    raise LaunchError(f"{self.name}: {event.reason}")
            if (left := end - time.monotonic()) <= 0:
                raise AgentTimeoutError(f"the agent on {self.name} does not answer")
            self._unread += self._receive(min(left, _POLL_S))

    def wait_stopped(self) -> list[SampledRows | SamplerFailure]:
        """Wait until no rank of its trial is left; return the results of its samplers.

        Other unread events of that trial are dropped.

        Raises:
            LaunchError: the agent is lost, or there is no answer.
        """
        self.wait_for(LaunchStopped)
        samples = [event for event in self._unread if isinstance(event, SampledRows | SamplerFailure)]
        self._unread.clear()
        if self._receiver:
            self._receiver.close()
        return samples

    def close(self) -> None:
        """End the connection; the agent then ends all processes of the run on its node."""
        self._channel.close()
        if self._receiver:
            self._receiver.close()

    def _receive(self, seconds: float) -> list[Message]:
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

    def _take_chunk(self, event: Message) -> bool:
        """Store *event* if it is a chunk of a file; False if it is none."""
        if self._receiver is None or not isinstance(event, FileChunk):
            return False
        try:
            self._receiver.receive(event)
        except TransferError as error:
            raise LaunchError(f"{self.name}: {error}") from error
        except OSError as error:
            # a full disk of this host ends the run, whichever node has sent the file
            if error.errno in DISK_FULL_ERRNOS:
                raise
            raise LaunchError(f"{self.name}: can't store {event.name}: {error.strerror}") from error
        self._chunks_received += 1
        return True


class AgentListener:
    """Listens until every agent of a launch has connected."""

    def __init__(self, token: str, port: int = 0, *, answer_timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Listen.

        Args:
            port: Port to which the agents connect; 0: any that is free.
            answer_timeout_s: Seconds for the first message of an agent, once it is authenticated.

        Raises:
            LaunchError: another process listens there.
        """
        try:
            self._listener = ChannelListener(token, port, self._greet)
        except OSError as error:
            raise LaunchError(f"can't listen for agents on port {port}: {error.strerror}") from error
        self._answer_timeout_s = answer_timeout_s
        self._connected: list[AgentConnection] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._problem = ""

    @property
    def addresses(self) -> str:
        """All addresses of this host, with the port: each node finds out which it can reach."""
        return ",".join(self._listener.addresses)

    def accept_all(
        self, nodes: Sequence[Node], started: StartedAgents, seconds: float, is_cancelled: CancelCheck
    ) -> list[AgentConnection]:
        """Accept the agents on *nodes*; return them in this order.

        Raises:
            LaunchError: not all have connected within *seconds*.
        """
        end, why = time.monotonic() + seconds, None
        while len(self._connected) < len(nodes) and time.monotonic() < end and not is_cancelled():
            if why := self._problem or started.failure():
                break
            self._listener.accept_next()
        with self._lock:
            self._is_over, met = True, self._connected
        if len(met) >= len(nodes):
            return _ordered(met, nodes)
        for agent in met:
            agent.close()
        why = why or f"{_missing_text(met, nodes)} within {seconds:g} s"
        # it may be one of them
        raise LaunchError("; ".join(filter(None, [why, self._listener.other_protocol])))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _greet(self, channel: AuthenticatedChannel) -> None:
        agent = AgentConnection(channel)
        try:
            agent.greet(self._answer_timeout_s)
            with self._lock:
                if not self._is_over:
                    self._connected.append(agent)
                    return
        except LaunchError as error:
            # one that ends before it has said its name, or is slow to say it, may come again
            if not isinstance(error, NodeLostError | AgentTimeoutError):
                self._problem = str(error)
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


def agents_without_access(agents: Sequence[AgentConnection], folder: Path) -> list[AgentConnection]:
    """Return the *agents* that do not see *folder* of this host.

    Raises:
        LaunchError: an agent is lost, or there is no answer.
        OSError: this host can't write there.
    """
    content = secrets.token_hex(8)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".shared-{content}"
    file.write_text(content)
    try:
        for agent in agents:
            agent.send(FindFile(str(file), content))
        return [agent for agent in agents if not agent.wait_for(FileFound).found]
    finally:
        file.unlink()


def send_inputs(spec: LaunchSpec, agents: Sequence[AgentConnection], is_cancelled: CancelCheck) -> None:
    """Send the files that *spec* reads to the copy of the run's folder on each of *agents*.

    Raises:
        LaunchError: an agent is lost or asks for another file, or the launch was cancelled.
        OSError: a file can't be read here.
    """
    if not agents:
        # the digests of large weights take minutes
        return
    root = spec.base_folder
    files = {
        file.relative_to(root).as_posix(): file
        for file in (spec.instructions, *spec.input_files)
        if file.is_file()
    }
    offer = OfferFiles(tuple((name, cached_sha256(file)) for name, file in files.items()), str(root))
    for agent in agents:
        agent.receive_files_into(root)
        agent.send(offer)
        missing = agent.wait_for(MissingFiles, seconds=_DIGEST_TIMEOUT_S, may_fail=True)
        if unknown := sorted(set(missing.names) - files.keys()):
            raise LaunchError(
                f"{agent.name} asks for {unknown[0]}, which was not offered; use the same distbench on all "
                "nodes"
            )
        for name in missing.names:
            for chunk in file_chunks(files[name], name):
                agent.send(chunk)
                if is_cancelled():
                    raise LaunchError("cancelled")
