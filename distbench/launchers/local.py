"""``local``: the ranks on this machine, forked from a warm parent that has imported torch once."""

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distbench.env import RUN_ID, Machine
from distbench.launchers.base import Exit, Handle, Launch, Launcher, Site
from distbench.launchers.server import Server, server_command
from distbench.processes import Share, kill_tagged

_STOP_PATIENCE_S = 10.0
_LOOPBACK = "lo"
# where gloo and NCCL open their sockets; gloo would take the address that the host's name resolves to
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Local(Launcher):
    """Processes on this machine, whose sockets are on the loopback interface.

    Another interface is taken from the environment: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME.
    """

    warm: bool = True
    """Fork the ranks of every trial from one process that has imported torch (and deepspeed);
    false: every trial imports afresh."""
    oversubscribe: bool = False
    """Allow more ranks than CPU cores; timings then mean little."""
    start_timeout: float = 120.0
    """Seconds that the warm parent may take to import torch and deepspeed."""

    def problem(self, processes: int, machine: Machine) -> str | None:
        if processes <= machine.devices:
            return None
        if machine.device == "cuda":
            return f"{processes} ranks need {processes} GPUs, this machine shows {machine.devices}"
        if self.oversubscribe:
            return None
        return (
            f"{processes} ranks need {processes} CPU cores, this machine has {machine.devices}; "
            f"fewer ranks, or launcher.local.oversubscribe: true where timings don't matter"
        )

    def environment(self) -> Mapping[str, str]:
        if _LOOPBACK not in [name for _, name in socket.if_nameindex()]:
            return {}
        return {name: _LOOPBACK for name in _INTERFACES if name not in os.environ}

    def commands(self, launch: Launch) -> list[list[str]]:
        """Commands of the warm parent and of each rank; a forked rank runs the same code."""
        worker = [launch.place.python, "-m", "distbench.worker", launch.entry, str(launch.file)]
        size = launch.processes
        ranks = [["env", f"RANK={rank}", f"WORLD_SIZE={size}", *worker] for rank in range(size)]
        return [server_command("CONTROL_SOCKET", launch.imports if self.warm else (), launch.place), *ranks]

    def open(self, run_id: str) -> Site:
        return _LocalSite(self, run_id)


class _LocalSite(Site):
    """Keeps one warm parent for each environment that the strategies ask for."""

    def __init__(self, options: Local, run_id: str) -> None:
        self._options = options
        self._run_id = run_id
        self._servers: dict[Any, Server] = {}

    def launch(self, launch: Launch) -> Handle:
        server = self._server(launch)
        server.launch(launch, Share(launch.processes, count=launch.processes))
        return _LocalHandle(server, launch.processes, self._sweep)

    def renew(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def close(self) -> None:
        self.renew()
        kill_tagged(self._run_id)

    def _server(self, launch: Launch) -> Server:
        place = launch.place
        environment = {**launch.environment, **place.environment}
        key = (tuple(launch.imports), tuple(sorted(environment.items())), place.python, place.folder)
        if kept := self._servers.pop(key, None):
            if self._options.warm and kept.alive:
                self._servers[key] = kept
                return kept
            kept.close()
        environment = {**os.environ, **environment, RUN_ID: self._run_id}
        log = launch.file.parent / "warm_parent.log"
        timeout_s = self._options.start_timeout
        server = Server(launch.imports if self._options.warm else (), environment, log, timeout_s, place)
        if server.cuda_touched:
            # the ranks then import for themselves; the record says so (environment.warm)
            server.close()
            server = Server((), environment, log, timeout_s, place)
        self._servers[key] = server
        return server

    def _sweep(self) -> None:
        """Kill what a rank has started and left behind."""
        kill_tagged(self._run_id, spare={server.pid for server in self._servers.values()})


class _LocalHandle(Handle):
    def __init__(self, server: Server, processes: int, sweep: Callable[[], None]) -> None:
        self._server = server
        self._left = set(range(processes))
        self._sweep = sweep

    def wait(self, seconds: float) -> list[Exit]:
        exits = []
        for event in self._server.events(seconds):
            if "exit" in event:
                self._left.discard(event["exit"])
                exits.append(Exit(event["exit"], event["code"], event["at"]))
        if not self._server.alive and self._left:
            # the warm parent itself was killed, and its ranks with it
            exits += [Exit(rank, -signal.SIGKILL, time.time()) for rank in sorted(self._left)]
            self._left.clear()
        return exits

    def signal(self, number: int) -> None:
        self._server.send({"signal": number})

    def stop(self) -> None:
        if self._left:
            self._server.send({"stop": True})
        end = time.monotonic() + _STOP_PATIENCE_S
        while self._left and time.monotonic() < end:
            self.wait(0.05)
        self._sweep()
