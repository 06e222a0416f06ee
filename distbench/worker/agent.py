"""Node agent: start and watch the ranks of one node for the controller.

A launcher (ssh, Slurm, ...) starts one on each node and owns it. It listens nowhere: it connects to the
controller, whose addresses and token are in its environment (or the token on its standard input). It starts
ranks as the launcher ``local`` does, by fork servers, on the interface by which it reaches the controller.

When the controller closes the connection, or is silent for too long, the run is over here: every process of
it on this node is ended. An agent that can't be restarted (``PATIENCE_VARIABLE``) then connects again,
unless the controller has said that the run is over.

Requests and events are messages of ``distbench.ipc.messages``. On a node that does not share the run's
folder, ranks run in a copy of it (``distbench.worker.remote_files``); the files of a rank are sent before its
exit.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distbench.ipc.channels import (
    CONTROLLERS_VARIABLE,
    PATIENCE_VARIABLE,
    SILENCE_TIMEOUT_S,
    TOKEN_VARIABLE,
    AuthenticatedChannel,
    ChannelError,
    HandshakeError,
    connect_to_controller,
)
from distbench.ipc.launch_spec import CURRENT_PYTHON, LaunchSpec
from distbench.ipc.messages import (
    DropMirror,
    EndRun,
    FileChunk,
    FileFound,
    FindFile,
    ForkServersStopped,
    LaunchFailed,
    LaunchPrepared,
    LaunchStarted,
    LaunchStopped,
    LogsSent,
    Message,
    MissingFiles,
    OfferFiles,
    PrepareLaunch,
    QueryStates,
    RankStates,
    RestartForkServers,
    SendLogs,
    SignalRanks,
    StartRanks,
    StopLaunch,
    Welcome,
)
from distbench.launchers.base import LaunchError, RunningLaunch
from distbench.launchers.local import Local
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.network_interfaces import INTERFACE_VARIABLES
from distbench.system.processes import die_with_parent, kill_run
from distbench.worker.node import NodeSamplers, interface_with_address, node_facts, node_name, wait_for_file
from distbench.worker.remote_files import MirroredTrial, RunMirror

_RETRY_S = 1.0
# a link that loses packets, or a crowd at the controller's port, may cost some handshakes
_HANDSHAKES_S = 30.0
_POLL_S = 0.25


def run_agent(parent: int | None = None) -> None:
    """Serve the controller that the environment names, until it is gone.

    Args:
        parent: The process that started this one, whose end ends this one; 0: the actual parent.

    Raises:
        SystemExit: none of its addresses can be reached, or the other end can't be believed.
    """
    if parent is not None:
        die_with_parent(parent or os.getppid())
    # a launcher that does not pass the environment on passes the standard input
    token = os.environ.pop(TOKEN_VARIABLE, "") or sys.stdin.readline().strip()
    patience_s = float(os.environ.get(PATIENCE_VARIABLE, "0"))
    # two agents of a run on one host must not take each other's ranks for leftovers
    tag = f"{os.environ[RUN_ID_VARIABLE]}@{node_name()}"
    # ranks of an abandoned agent, which can't end them while it is stopped
    kill_run(tag)
    is_over = False
    try:
        while not is_over:
            is_over = _serve_controller(token, patience_s, tag) or not patience_s
    except ChannelError as error:
        # agents share a log, so the line has the node
        raise SystemExit(f"{node_name()}: {error}") from error


def _serve_controller(token: str, patience_s: float, tag: str) -> bool:
    """Serve the controller until it is gone; return True if it has said that the run is over."""
    agent = NodeAgent(
        _connect_with_retry(os.environ[CONTROLLERS_VARIABLE].split(","), token, patience_s), tag
    )
    try:
        agent.run()
    finally:
        agent.close()
    return agent.run_ended


def _connect_with_retry(addresses: list[str], token: str, patience_s: float) -> AuthenticatedChannel:
    """Connect to the controller: within *patience_s*, and at least as long as one end takes connections."""
    began = time.monotonic()
    while True:
        try:
            return connect_to_controller(addresses, token)
        except ChannelError as error:
            limit_s = max(patience_s, _HANDSHAKES_S if isinstance(error, HandshakeError) else 0)
            if time.monotonic() - began >= limit_s:
                raise
        time.sleep(_RETRY_S)


class NodeAgent:
    """Agent that starts ranks on this node, those of one trial at a time."""

    def __init__(self, channel: AuthenticatedChannel, run_id: str) -> None:
        self._channel = channel
        # the plan of the run has already checked for more ranks than cores
        self._session = Local(oversubscribe=True).open_session(run_id)
        self._prepared: LaunchSpec | None = None
        self._launch_number = 0
        self._running: RunningLaunch | None = None
        self._ranks_left: set[int] = set()
        self._mirror: RunMirror | None = None
        self._trial: MirroredTrial | None = None
        self._samplers: NodeSamplers | None = None
        self._outbox: deque[Iterator[Message]] = deque()
        self._last_update_at = 0.0
        self.run_ended = False
        """True once the controller has said that it needs no agents any more."""

    def run(self) -> None:
        """Serve until the controller is gone.

        Raises:
            ChannelError: somebody has injected data into the connection.
        """
        self._channel.send(node_facts(self._channel.address))
        while self._channel.alive:
            self._flush()
            # either wait ends as soon as its event arrives
            if self._ranks_left:
                self._poll_ranks(0.0 if self._outbox else _POLL_S)
            requests = self._channel.receive(0 if self._ranks_left or self._outbox else _POLL_S)
            # checked after reading: a request may have taken long, such as digests of large files
            if self._channel.seconds_silent() > SILENCE_TIMEOUT_S:
                return
            for request in requests:
                self._handle_request(request)

    def close(self) -> None:
        """End every process of the run on this node."""
        self._session.close()
        self._channel.close()
        if self._samplers:
            self._samplers.stop()
        if self._mirror:
            self._mirror.close()

    def _handle_request(self, request: Message) -> None:
        match request:
            case Welcome():
                clock.synchronize(request.now)
            case FindFile():
                self._channel.send(FileFound(wait_for_file(request.file, request.content)))
            case RestartForkServers():
                self._session.restart_fork_servers()
                self._channel.send(ForkServersStopped())
            case EndRun():
                self.run_ended = True
            case PrepareLaunch() | StartRanks() | SignalRanks() | QueryStates() | StopLaunch():
                self._handle_launch_request(request)
            case _:
                self._handle_file_request(request)

    def _handle_launch_request(
        self, request: PrepareLaunch | StartRanks | SignalRanks | QueryStates | StopLaunch
    ) -> None:
        """Handle a *request* about the ranks of a trial."""
        match request:
            case PrepareLaunch():
                self._prepare(request)
            case StartRanks():
                self._launch(request.master_port)
            case SignalRanks():
                if self._running:
                    self._running.signal(request.number)
            case QueryStates():
                states = self._running.process_states() if self._running else {}
                self._channel.send(RankStates(tuple(states.items())))
            case StopLaunch():
                self._stop()

    def _handle_file_request(self, request: Message) -> None:
        """Handle a *request* about this node's copy of the run's folder."""
        match request:
            case OfferFiles():
                self._answer_offer(request)
            case FileChunk():
                if self._mirror:
                    self._mirror.receive(request)
            case SendLogs():
                if self._trial:
                    self._outbox.append(self._trial.current_files())
                self._enqueue(LogsSent())
            case DropMirror():
                if self._mirror:
                    self._mirror.close()
                    self._mirror = None
            case _:
                raise ChannelError(f"no request to an agent: {request}")

    def _answer_offer(self, offer: OfferFiles) -> None:
        """Report the files on *offer* that are not in this node's copy of the run's folder."""
        try:
            self._mirror = self._mirror or RunMirror(offer.root)
            self._enqueue(MissingFiles(tuple(self._mirror.missing_files(offer.files))))
        except OSError as error:
            self._enqueue(LaunchFailed(f"can't copy {offer.root}: {error}"))

    def _prepare(self, request: PrepareLaunch) -> None:
        self._launch_number = request.number
        try:
            self._prepared = self._local_spec(request)
            self._session.prepare(self._prepared, self._is_controller_gone)
        except (LaunchError, OSError) as error:
            self._enqueue(LaunchFailed(str(error)))
            return
        self._enqueue(LaunchPrepared())

    def _launch(self, master_port: int) -> None:
        assert self._prepared
        own = replace(self._prepared.local_ranks, master_port=master_port)
        spec = self._prepared.with_ranks(own)
        try:
            self._running = self._session.launch(spec, self._is_controller_gone)
            # ranks are watched from here on, also if nothing can be sampled
            self._ranks_left = set(spec.local_ranks.ranks)
            if spec.is_sampled:
                self._samplers = NodeSamplers(spec)
        except (LaunchError, OSError) as error:
            self._enqueue(LaunchFailed(str(error)))
            return
        self._enqueue(LaunchStarted(self._running.port))

    def _is_controller_gone(self) -> bool:
        return not self._channel.alive

    def _local_spec(self, request: PrepareLaunch) -> LaunchSpec:
        """The launch of *request* with the paths and interfaces of this node.

        Raises:
            OSError: something that it needs is not here.
        """
        spec, folder = request.spec, Path(request.spec.target.working_directory or "")
        interface = interface_with_address(self._channel.address)
        sockets = {name: interface for name in INTERFACE_VARIABLES if interface and name not in os.environ}
        if request.in_mirror:
            assert self._mirror
            self._trial = self._mirror.open_trial(spec, request.file_label)
            spec = replace(spec, instructions=self._trial.file)
            # an import from the missing folder then fails by name
            folder = folder if folder.is_dir() else self._mirror.folder
        if not folder.is_dir():
            raise OSError(f"the working directory {folder} does not exist on this node")
        target = replace(spec.target, python=CURRENT_PYTHON.python, working_directory=str(folder))
        return replace(spec, environment={**sockets, **spec.environment}, target=target)

    def _poll_ranks(self, seconds: float) -> None:
        assert self._running
        try:
            exits = self._running.wait(seconds)
        except LaunchError as error:
            self._ranks_left = set()
            self._enqueue(LaunchFailed(str(error)))
            return
        for each in exits:
            self._ranks_left.discard(each.rank)
            if self._trial:
                self._outbox.append(self._trial.final_files(each.rank))
            self._enqueue(replace(each, launch=self._launch_number))

    def _stop(self) -> None:
        if self._running:
            self._running.stop()
        self._prepared, self._running, self._ranks_left = None, None, set()
        # nobody needs the results of a trial that was stopped
        self._outbox.clear()
        if self._trial:
            self._outbox.append(self._trial.current_files())
            self._outbox.append(self._trial.remove())
            self._trial = None
        if self._samplers:
            self._outbox.append(iter(self._samplers.stop()))
            self._samplers = None
        self._enqueue(LaunchStopped())

    def _enqueue(self, message: Message) -> None:
        """Send *message* after all queued messages."""
        self._outbox.append(iter([message]))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        """Send the news of the trial, and one queued message."""
        if self._trial and time.monotonic() - self._last_update_at > _POLL_S:
            self._last_update_at = time.monotonic()
            for message in self._trial.updates():
                self._channel.send(message)
        try:
            while self._outbox:
                for message in self._outbox[0]:
                    self._channel.send(message)
                    return
                self._outbox.popleft()
        except OSError as error:
            self._outbox.clear()
            self._channel.send(LaunchFailed(f"can't read the files of the ranks: {error}"))
