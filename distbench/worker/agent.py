"""The agent of a run on one node: starts and watches the node's ranks as the controller asks.

An engine (ssh, Slurm, ...) starts one on each node and owns it. It listens nowhere: it connects to the
controller, whose addresses and token are in its environment (or the token on its standard input). It starts
ranks as the launcher ``local`` does, by warm parents, on the interface by which it reaches the controller.

When the controller closes the connection, or is silent for too long, the run is over here: every process of
it on this node is ended. An agent that can't be started again (``PATIENCE``) then connects once more, unless
it was told that the run is over.

In: ``{"welcome": clock}``, ``{"look": [file, content]}``, ``{"launch": {...}}``, ``{"signal": n}``,
``{"states": true}``, ``{"stop": true}``, ``{"renew": true}``, ``{"over": true}``. Out: ``{"node": facts}``,
``{"sees": bool}``, ``{"port": n}`` when the ranks are started, ``{"failed": reason}``, ``{"exit": rank,
...}``, ``{"states": {rank: letter}}``, ``{"samples": metric, "rows": [row]}`` (or ``"reason"`` why not) of a
trial that was sampled and has ended, ``{"stopped": true}``, ``{"renewed": true}``.

On a node that does not share the run's folder, ranks run in a copy of it (``distbench.worker.apart``). In:
``{"offer": [[file, digest]], "root": folder}``, ``{"piece": file, ...}``, ``{"tell": true}``, ``{"forget":
true}``. Out: ``{"lacks": [file]}``, ``{"piece": file, ...}``, ``{"signs": {rank: sign}}``, ``{"journal":
[event]}`` of a preparation, ``{"told": true}``. What a rank has left goes before its ``exit``.
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

from distbench.core.serialization import decoded
from distbench.ipc.file_transfer import Message
from distbench.ipc.messages import AGENT, CONTROLLERS, PATIENCE, SILENCE_S, TOKEN, Wire, WireError
from distbench.launchers.base import Handle, Launch, LaunchError, Place
from distbench.launchers.local import INTERFACES, Local
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import Share, die_with_parent, kill_tagged
from distbench.worker.apart import Copy, Trial
from distbench.worker.node import facts, interface_of, name, sees
from distbench.worker.sampling import Sampling

_CONNECT_S = 5.0
_AGAIN_S = 1.0
_POLL_S = 0.25


def serve_node(parent: int | None = None) -> None:
    """Serve the controller that the environment names, until it is gone.

    Args:
        parent: The process that started this one, whose end, whatever it is, ends this one; 0: whichever did.

    Raises:
        WireError: none of its addresses can be reached, or what is there does not know the token.
    """
    if parent is not None:
        die_with_parent(parent or os.getppid())
    # an engine that passes no environment on passes the standard input
    token = os.environ.pop(TOKEN, "") or sys.stdin.readline().strip()
    patience_s = float(os.environ.get(PATIENCE, "0"))
    # two agents of a run on one host must not take each other's ranks for leftovers
    tag = f"{os.environ[RUN_ID_VARIABLE]}@{name()}"
    # those of an agent that was given up, and can't end them itself while it is stopped
    kill_tagged(tag)
    is_over = False
    while not is_over:
        agent = Agent(_connected(os.environ[CONTROLLERS].split(","), token, patience_s), tag)
        try:
            agent.run()
        finally:
            agent.close()
        is_over = agent.is_over or not patience_s


def _connected(addresses: list[str], token: str, patience_s: float) -> Wire:
    end = time.monotonic() + patience_s
    while True:
        try:
            return _connected_once(addresses, token)
        except WireError:
            if time.monotonic() > end:
                raise
        time.sleep(_AGAIN_S)


def _connected_once(addresses: list[str], token: str) -> Wire:
    failures = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
            return Wire(connection, token, AGENT)
        except (OSError, WireError) as error:
            failures.append(f"{address}: {error}")
    raise WireError(f"the controller can't be reached: {'; '.join(failures)}")


class Agent:
    """Starts ranks on this node; those of one trial at a time."""

    def __init__(self, wire: Wire, run_id: str) -> None:
        self._wire = wire
        # whether there are more ranks than cores was asked when the run was planned
        self._site = Local(oversubscribe=True).open(run_id)
        self._handle: Handle | None = None
        self._left: set[int] = set()
        self._copy: Copy | None = None
        self._trial: Trial | None = None
        self._sampling: Sampling | None = None
        self._outbox: deque[Iterator[Message]] = deque()
        self._told_at = 0.0
        self.is_over = False
        """Whether the controller has said that it needs no agents any more."""

    def run(self) -> None:
        """Serve until the controller is gone.

        Raises:
            WireError: somebody has put something into the connection.
        """
        self._wire.send({"node": facts(self._wire.address)})
        while self._wire.alive:
            self._send_more()
            # either wait ends at once when what is waited for comes
            if self._left:
                self._watch(0.0 if self._outbox else _POLL_S)
            requests = self._wire.receive(0 if self._left or self._outbox else _POLL_S)
            # asked after a look at what has come: to obey may have taken long, as digests of large files do
            if self._wire.silent_s() > SILENCE_S:
                return
            for request in requests:
                self._obey(request)

    def close(self) -> None:
        """End every process of the run on this node."""
        self._site.close()
        self._wire.close()
        if self._sampling:
            self._sampling.stop()
        if self._copy:
            self._copy.close()

    def _obey(self, request: dict[str, Any]) -> None:
        if "launch" in request:
            self._launch(**request["launch"])
        elif "signal" in request and self._handle:
            self._handle.signal(request["signal"])
        elif "states" in request:
            self._wire.send({"states": self._handle.states() if self._handle else {}})
        elif "stop" in request:
            self._stop()
        elif "renew" in request:
            self._site.renew()
            self._wire.send({"renewed": True})
        elif "look" in request:
            self._wire.send({"sees": sees(*request["look"])})
        elif "over" in request:
            self.is_over = True
        elif "welcome" in request:
            clock.follow(request["welcome"])
        else:
            self._copies(request)

    def _copies(self, request: dict[str, Any]) -> None:
        """Obey a *request* about this node's copy of the run's folder."""
        if "offer" in request:
            self._offered(**request)
        elif "piece" in request and self._copy:
            self._copy.take(request)
        elif "tell" in request:
            if self._trial:
                self._outbox.append(self._trial.told())
            self._say({"told": True})
        elif "forget" in request and self._copy:
            self._copy.close()
            self._copy = None

    def _offered(self, offer: list[tuple[str, str]], root: str) -> None:
        """Say which of the files on *offer* are not in this node's copy of *root*."""
        try:
            self._copy = self._copy or Copy(root)
            self._say({"lacks": self._copy.lacks(offer)})
        except OSError as error:
            self._say({"failed": f"no copy of {root} can be made: {error}"})

    def _launch(self, **request: Any) -> None:
        try:
            launch = self._request(**request)
            self._handle = self._site.launch(launch)
            assert launch.share
            # they are watched from here on, also where nothing can be sampled
            self._left = set(range(launch.share.first, launch.share.first + launch.share.count))
            if launch.is_sampled:
                self._sampling = Sampling(launch)
        except (LaunchError, OSError) as error:
            self._say({"failed": str(error)})
            return
        self._say({"port": self._handle.port})

    def _request(
        self, file: str, share: dict[str, Any], environment: dict[str, str], folder: str, **rest: Any
    ) -> Launch:
        """What the controller asks to launch, as this node does it.

        Raises:
            OSError: what it needs is not here.
        """
        own = decoded(Share, share, "launch request")
        interface = interface_of(self._wire.address)
        sockets = {name: interface for name in INTERFACES if interface and name not in os.environ}
        leaves, node = rest.pop("leaves"), rest.pop("node")
        if leaves is not None:
            assert self._copy
            ranks = range(own.first, own.first + own.count)
            is_preparation = rest["entry"] == "prepare"
            self._trial = self._copy.trial(file, leaves, ranks, node, is_preparation=is_preparation)
            file = str(self._trial.file)
            # what is imported from there is missed by name
            folder = folder if Path(folder).is_dir() else str(self._copy.folder)
        if not Path(folder).is_dir():
            raise OSError(f"there is no folder {folder}, in which the command runs")
        return Launch(
            file=Path(file),
            processes=own.world_size,
            nodes=own.nodes,
            environment={**sockets, **environment},
            place=Place(folder=folder),
            share=own,
            given_up=lambda: not self._wire.alive,
            **rest,
        )

    def _watch(self, seconds: float) -> None:
        assert self._handle
        try:
            exits = self._handle.wait(seconds)
        except LaunchError as error:
            self._left = set()
            self._say({"failed": str(error)})
            return
        for each in exits:
            self._left.discard(each.rank)
            memory = asdict(each.memory) if each.memory else None
            if self._trial:
                self._outbox.append(self._trial.ended(each.rank))
            self._say({"exit": each.rank, "code": each.code, "at": each.at, "memory": memory})

    def _stop(self) -> None:
        if self._handle:
            self._handle.stop()
        self._handle, self._left = None, set()
        # nobody asks for what a trial measured that was stopped
        self._outbox.clear()
        if self._trial:
            self._outbox.append(self._trial.told())
            self._outbox.append(self._trial.removed())
            self._trial = None
        if self._sampling:
            pieces = self._sampling.stop()
            self._outbox.append(iter([(piece, b"") for piece in pieces]))
            self._sampling = None
        self._say({"stopped": True})

    def _say(self, message: dict[str, Any]) -> None:
        """Send *message* after all that is on its way."""
        self._outbox.append(iter([(message, b"")]))
        if len(self._outbox) == 1:
            self._send_more()

    def _send_more(self) -> None:
        """Send the news of the trial, and one message of what waits."""
        if self._trial and time.monotonic() - self._told_at > _POLL_S:
            self._told_at = time.monotonic()
            for message in self._trial.news():
                self._wire.send(*message)
        try:
            while self._outbox:
                for message in self._outbox[0]:
                    self._wire.send(*message)
                    return
                self._outbox.popleft()
        except OSError as error:
            self._outbox.clear()
            self._wire.send({"failed": f"what ranks have written can't be read: {error}"})
