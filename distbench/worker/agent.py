"""Node agent: start and watch the ranks of one node for the controller.

A launcher (ssh, Slurm, ...) starts one on each node and owns it. It listens nowhere: it connects to the
controller, whose addresses and token are in its environment (or the token on its standard input). It starts
ranks as the launcher ``local`` does, by fork servers, on the interface by which it reaches the controller.

When the controller closes the connection, or is silent for too long, the run is over here: every process of
it on this node is ended. An agent that can't be restarted (``PATIENCE_VARIABLE``) then connects again,
unless the controller has said that the run is over.

In: ``{"welcome": clock}``, ``{"look": [file, content]}``, ``{"launch": {...}}``, ``{"signal": n}``,
``{"states": true}``, ``{"stop": true}``, ``{"renew": true}``, ``{"over": true}``. Out: ``{"node": facts}``,
``{"sees": bool}``, ``{"port": n}`` when the ranks are started, ``{"failed": reason}``, ``{"exit": rank,
...}``, ``{"states": {rank: letter}}``, ``{"samples": metric, "rows": [row]}`` (or a ``"reason"``) of a
sampled trial that has ended, ``{"stopped": true}``, ``{"renewed": true}``.

On a node that does not share the run's folder, ranks run in a copy of it (``distbench.worker.remote_files``).
In: ``{"offer": [[file, digest]], "root": folder}``, ``{"piece": file, ...}``, ``{"tell": true}``,
``{"forget": true}``. Out: ``{"lacks": [file]}``, ``{"piece": file, ...}``, ``{"signs": {rank: sign}}``,
``{"journal": [event]}`` of a preparation, ``{"told": true}``. The files of a rank go before its ``exit``.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distbench.core.serialization import decode
from distbench.ipc.file_transfer import ChannelMessage
from distbench.ipc.messages import (
    AGENT_ROLE,
    CONTROLLERS_VARIABLE,
    PATIENCE_VARIABLE,
    SILENCE_TIMEOUT_S,
    TOKEN_VARIABLE,
    AuthenticatedChannel,
    ChannelError,
)
from distbench.launchers.base import LaunchError, LaunchSpec, PythonTarget, RunningLaunch
from distbench.launchers.local import INTERFACE_VARIABLES, Local
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import RankRange, die_with_parent, kill_run
from distbench.worker.node import interface_with_address, node_facts, node_name, wait_for_file
from distbench.worker.node_sampler import NodeSamplers
from distbench.worker.remote_files import MirroredTrial, RunMirror

_CONNECT_TIMEOUT_S = 5.0
_RETRY_S = 1.0
_POLL_S = 0.25


def run_agent(parent: int | None = None) -> None:
    """Serve the controller that the environment names, until it is gone.

    Args:
        parent: The process that started this one, whose end ends this one; 0: the actual parent.

    Raises:
        ChannelError: none of its addresses can be reached, or the other end does not know the token.
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
    while not is_over:
        agent = NodeAgent(
            _connect_with_retry(os.environ[CONTROLLERS_VARIABLE].split(","), token, patience_s), tag
        )
        try:
            agent.run()
        finally:
            agent.close()
        is_over = agent.run_ended or not patience_s


def _connect_with_retry(addresses: list[str], token: str, timeout_s: float) -> AuthenticatedChannel:
    end = time.monotonic() + timeout_s
    while True:
        try:
            return _connect(addresses, token)
        except ChannelError:
            if time.monotonic() > end:
                raise
        time.sleep(_RETRY_S)


def _connect(addresses: list[str], token: str) -> AuthenticatedChannel:
    failures = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S)
            return AuthenticatedChannel(connection, token, AGENT_ROLE)
        except (OSError, ChannelError) as error:
            failures.append(f"{address}: {error}")
    raise ChannelError(f"can't reach the controller: {'; '.join(failures)}")


class NodeAgent:
    """Agent that starts ranks on this node, those of one trial at a time."""

    def __init__(self, wire: AuthenticatedChannel, run_id: str) -> None:
        self._wire = wire
        # the plan of the run has already checked for more ranks than cores
        self._site = Local(oversubscribe=True).open_session(run_id)
        self._handle: RunningLaunch | None = None
        self._running: set[int] = set()
        self._mirror: RunMirror | None = None
        self._trial: MirroredTrial | None = None
        self._samplers: NodeSamplers | None = None
        self._outbox: deque[Iterator[ChannelMessage]] = deque()
        self._last_update_at = 0.0
        self.run_ended = False
        """True once the controller has said that it needs no agents any more."""

    def run(self) -> None:
        """Serve until the controller is gone.

        Raises:
            ChannelError: somebody has injected data into the connection.
        """
        self._wire.send({"node": node_facts(self._wire.address)})
        while self._wire.alive:
            self._flush()
            # either wait ends as soon as its event arrives
            if self._running:
                self._poll_ranks(0.0 if self._outbox else _POLL_S)
            requests = self._wire.receive(0 if self._running or self._outbox else _POLL_S)
            # checked after reading: a request may have taken long, such as digests of large files
            if self._wire.seconds_silent() > SILENCE_TIMEOUT_S:
                return
            for request in requests:
                self._handle_request(request)

    def close(self) -> None:
        """End every process of the run on this node."""
        self._site.close()
        self._wire.close()
        if self._samplers:
            self._samplers.stop()
        if self._mirror:
            self._mirror.close()

    def _handle_request(self, request: dict[str, Any]) -> None:
        if "launch" in request:
            self._launch(**request["launch"])
        elif "signal" in request and self._handle:
            self._handle.signal(request["signal"])
        elif "states" in request:
            self._wire.send({"states": self._handle.process_states() if self._handle else {}})
        elif "stop" in request:
            self._stop()
        elif "renew" in request:
            self._site.restart_fork_servers()
            self._wire.send({"renewed": True})
        elif "look" in request:
            self._wire.send({"sees": wait_for_file(*request["look"])})
        elif "over" in request:
            self.run_ended = True
        elif "welcome" in request:
            clock.synchronize(request["welcome"])
        else:
            self._handle_file_request(request)

    def _handle_file_request(self, request: dict[str, Any]) -> None:
        """Handle a *request* about this node's copy of the run's folder."""
        if "offer" in request:
            self._answer_offer(**request)
        elif "piece" in request and self._mirror:
            self._mirror.receive(request)
        elif "tell" in request:
            if self._trial:
                self._outbox.append(self._trial.current_files())
            self._enqueue({"told": True})
        elif "forget" in request and self._mirror:
            self._mirror.close()
            self._mirror = None

    def _answer_offer(self, offer: list[tuple[str, str]], root: str) -> None:
        """Report the files on *offer* that are not in this node's copy of *root*."""
        try:
            self._mirror = self._mirror or RunMirror(root)
            self._enqueue({"lacks": self._mirror.missing_files(offer)})
        except OSError as error:
            self._enqueue({"failed": f"can't copy {root}: {error}"})

    def _launch(self, **request: Any) -> None:
        try:
            launch = self._local_launch(**request)
            self._handle = self._site.launch(launch)
            assert launch.ranks
            # ranks are watched from here on, also if nothing can be sampled
            self._running = set(range(launch.ranks.first, launch.ranks.first + launch.ranks.count))
            if launch.is_sampled:
                self._samplers = NodeSamplers(launch)
        except (LaunchError, OSError) as error:
            self._enqueue({"failed": str(error)})
            return
        self._enqueue({"port": self._handle.port})

    def _local_launch(
        self, file: str, share: dict[str, Any], environment: dict[str, str], folder: str, **rest: Any
    ) -> LaunchSpec:
        """Translate a launch request of the controller into a local launch.

        Raises:
            OSError: something that it needs is not here.
        """
        own = decode(RankRange, share, "launch request")
        interface = interface_with_address(self._wire.address)
        sockets = {name: interface for name in INTERFACE_VARIABLES if interface and name not in os.environ}
        leaves, node = rest.pop("leaves"), rest.pop("node")
        if leaves is not None:
            assert self._mirror
            ranks = range(own.first, own.first + own.count)
            is_preparation = rest["entry"] == "prepare"
            self._trial = self._mirror.open_trial(file, leaves, ranks, node, is_preparation=is_preparation)
            file = str(self._trial.file)
            # an import from the missing folder then fails by name
            folder = folder if Path(folder).is_dir() else str(self._mirror.folder)
        if not Path(folder).is_dir():
            raise OSError(f"the working directory {folder} does not exist on this node")
        return LaunchSpec(
            instructions=Path(file),
            processes=own.world_size,
            nodes=own.node_count,
            environment={**sockets, **environment},
            target=PythonTarget(working_directory=folder),
            ranks=own,
            is_cancelled=lambda: not self._wire.alive,
            **rest,
        )

    def _poll_ranks(self, seconds: float) -> None:
        assert self._handle
        try:
            exits = self._handle.wait(seconds)
        except LaunchError as error:
            self._running = set()
            self._enqueue({"failed": str(error)})
            return
        for each in exits:
            self._running.discard(each.rank)
            memory = asdict(each.memory) if each.memory else None
            if self._trial:
                self._outbox.append(self._trial.final_files(each.rank))
            self._enqueue({"exit": each.rank, "code": each.code, "at": each.at, "memory": memory})

    def _stop(self) -> None:
        if self._handle:
            self._handle.stop()
        self._handle, self._running = None, set()
        # nobody needs the results of a trial that was stopped
        self._outbox.clear()
        if self._trial:
            self._outbox.append(self._trial.current_files())
            self._outbox.append(self._trial.remove())
            self._trial = None
        if self._samplers:
            pieces = self._samplers.stop()
            self._outbox.append(iter([(piece, b"") for piece in pieces]))
            self._samplers = None
        self._enqueue({"stopped": True})

    def _enqueue(self, message: dict[str, Any]) -> None:
        """Send *message* after all queued messages."""
        self._outbox.append(iter([(message, b"")]))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        """Send the news of the trial, and one queued message."""
        if self._trial and time.monotonic() - self._last_update_at > _POLL_S:
            self._last_update_at = time.monotonic()
            for message in self._trial.updates():
                self._wire.send(*message)
        try:
            while self._outbox:
                for message in self._outbox[0]:
                    self._wire.send(*message)
                    return
                self._outbox.popleft()
        except OSError as error:
            self._outbox.clear()
            self._wire.send({"failed": f"can't read the files of the ranks: {error}"})
