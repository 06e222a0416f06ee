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
...}``, ``{"states": {rank: letter}}``, ``{"stopped": true}``, ``{"renewed": true}``.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

import distbench
from distbench import clock, env
from distbench.decode import decoded
from distbench.launchers.base import Handle, Launch, LaunchError, Place
from distbench.launchers.local import INTERFACES, Local
from distbench.processes import Share, die_with_parent, kill_tagged
from distbench.wire import AGENT, CONTROLLERS, NODE, PATIENCE, SILENCE_S, TOKEN, Wire, WireError

_CONNECT_S = 5.0
_AGAIN_S = 1.0
_POLL_S = 0.25


def serve_node(parent: int | None = None) -> None:
    """Serve the controller that the environment names, until it is gone.

    Args:
        parent: The process that started this one, whose end, whatever it is, ends this one.

    Raises:
        WireError: none of its addresses can be reached, or what is there does not know the token.
    """
    if parent:
        die_with_parent(parent)
    # an engine that passes no environment on passes the standard input
    token = os.environ.pop(TOKEN, "") or sys.stdin.readline().strip()
    patience_s = float(os.environ.get(PATIENCE, "0"))
    # two agents of a run on one host must not take each other's ranks for leftovers
    tag = f"{os.environ[env.RUN_ID]}@{_name()}"
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
        self.is_over = False
        """Whether the controller has said that it needs no agents any more."""

    def run(self) -> None:
        """Serve until the controller is gone.

        Raises:
            WireError: somebody has put something into the connection.
        """
        self._wire.send({"node": facts(self._wire.address)})
        while self._wire.alive and self._wire.silent_s() < SILENCE_S:
            # either wait ends at once when what is waited for comes
            if self._left:
                self._watch()
            for request in self._wire.receive(0 if self._left else _POLL_S):
                self._obey(request)

    def close(self) -> None:
        """End every process of the run on this node."""
        self._site.close()
        self._wire.close()

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
            self._wire.send({"sees": _sees(*request["look"])})
        elif "over" in request:
            self.is_over = True
        elif "welcome" in request:
            clock.follow(request["welcome"])

    def _launch(self, file: str, share: dict[str, Any], environment: dict[str, str], **rest: Any) -> None:
        own = decoded(Share, share, "launch request")
        interface = interface_of(self._wire.address)
        sockets = {name: interface for name in INTERFACES if interface and name not in os.environ}
        launch = Launch(
            file=Path(file),
            processes=own.world_size,
            nodes=own.nodes,
            environment={**sockets, **environment},
            place=Place(folder=rest.pop("folder")),
            share=own,
            given_up=lambda: not self._wire.alive,
            **rest,
        )
        try:
            self._handle = self._site.launch(launch)
        except LaunchError as error:
            self._wire.send({"failed": str(error)})
            return
        self._left = set(range(own.first, own.first + own.count))
        self._wire.send({"port": self._handle.port})

    def _watch(self) -> None:
        assert self._handle
        try:
            exits = self._handle.wait(_POLL_S)
        except LaunchError as error:
            self._left = set()
            self._wire.send({"failed": str(error)})
            return
        for each in exits:
            self._left.discard(each.rank)
            memory = asdict(each.memory) if each.memory else None
            self._wire.send({"exit": each.rank, "code": each.code, "at": each.at, "memory": memory})

    def _stop(self) -> None:
        if self._handle:
            self._handle.stop()
        self._handle, self._left = None, set()
        self._wire.send({"stopped": True})


def facts(address: str) -> dict[str, Any]:
    """What the controller has to know of this node, whose ranks the others reach at *address*."""
    return {"name": _name(), "address": address, "distbench": _code(), **env.describe()}


def _code() -> str:
    """Digest of the code of distbench here."""
    whole = hashlib.sha256()
    for file in sorted(Path(distbench.__file__).parent.rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


def _name() -> str:
    return os.environ.get(NODE) or socket.gethostname().partition(".")[0]


def interface_of(address: str) -> str:
    """Name of the network interface of this host with *address*; empty if none has it."""
    interfaces = psutil.net_if_addrs()
    return next(
        (name for name, has in interfaces.items() if any(each.address == address for each in has)), ""
    )


def _sees(file: str, content: str) -> bool:
    """Whether *file* is there with *content*, as it is on a file system that the controller shares."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with suppress(OSError):
            if Path(file).read_text() == content:
                return True
        # file systems of a network show a new file when its folder is listed again
        with suppress(OSError):
            list(Path(file).parent.iterdir())
        time.sleep(0.05)
    return False
