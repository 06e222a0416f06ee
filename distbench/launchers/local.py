"""``local``: the ranks on this machine, forked from a warm parent that has imported torch once."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.bounds import Positive
from distbench.core.case import Limits
from distbench.core.machine import Machine
from distbench.launchers.base import Exit, Handle, Launch, Launcher, LaunchError, Site
from distbench.launchers.server import Server, exit_of, server_command
from distbench.launchers.visible import by_number
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import Share, kill_tagged

# for a launch, and for the end of all ranks: both take a warm parent milliseconds
_PATIENCE_S = 10.0
_STATES_S = 2.0
_LOOPBACK = "lo"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Where gloo and NCCL open their sockets; gloo would take the address that the host's name resolves to."""


@dataclass(frozen=True)
class Local(Launcher):
    """Processes on this machine, whose sockets are on the loopback interface.

    Another interface is taken from the environment: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME.
    """

    takes_python: ClassVar[bool] = True

    warm: bool = True
    """Fork the ranks of every trial from one process that has imported torch (and deepspeed);
    false: every trial imports afresh."""
    oversubscribe: bool = False
    """Allow more ranks than CPU cores; timings then mean little."""
    start_timeout: Positive | None = None
    """Seconds, above 0, that the warm parent may take to import torch and deepspeed; null: ``limits.start``,
    at least 120."""

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
        import pynvml

        gpus = by_number(pynvml, os.environ)
        if _LOOPBACK not in [name for _, name in socket.if_nameindex()]:
            return gpus
        return {**gpus, **{name: _LOOPBACK for name in INTERFACES if name not in os.environ}}

    def commands(self, launch: Launch) -> list[list[str]]:
        """Commands of the warm parent and of each rank; a forked rank runs the same code."""
        worker = [launch.place.python, "-m", "distbench.worker", launch.entry, str(launch.file)]
        size = launch.processes
        ranks = [["env", f"RANK={rank}", f"WORLD_SIZE={size}", *worker] for rank in range(size)]
        return [server_command("CONTROL_SOCKET", launch.imports if self.warm else (), launch.place), *ranks]

    def patience_s(self, launch: Launch) -> float:
        """Seconds that the warm parent of the ranks of *launch* may take to import."""
        return self.start_timeout or max(Limits().start, launch.start_s)

    def open(self, run_id: str) -> Site:
        return _LocalSite(self, run_id)


class _LocalSite(Site):
    """Keeps one warm parent for each environment that the strategies ask for."""

    def __init__(self, options: Local, run_id: str) -> None:
        self._options = options
        self._run_id = run_id
        self._servers: dict[Any, Server] = {}

    def launch(self, launch: Launch) -> Handle:
        server, share = self._server(launch), launch.share or Share(launch.processes, launch.processes)
        if why := _problem(server, launch, share):
            if launch.given_up() or any(launch.file.parent.glob("rank*.progress")):
                raise why
            # it ended or was stopped between two trials, which costs neither of them
            server = self._server(launch, instead=f"{why}\n")
            if why := _problem(server, launch, share):
                raise why
        return _LocalHandle(server, share, self._sweep)

    def renew(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def close(self) -> None:
        self.renew()
        kill_tagged(self._run_id)

    def _server(self, launch: Launch, instead: str = "") -> Server:
        """Warm parent for *launch*, kept or new; *instead* goes to the log of a new one."""
        place = launch.place
        environment = {**launch.environment, **place.environment}
        key = (tuple(launch.imports), tuple(sorted(environment.items())), place.python, place.folder)
        if kept := self._servers.pop(key, None):
            if self._options.warm and kept.alive:
                self._servers[key] = kept
                return kept
            kept.close()
        log = launch.file.parent / "warm_parent.log"
        with log.open("a") as stream:
            stream.write(instead)
        environment = {**os.environ, **environment, **clock.shared(), RUN_ID_VARIABLE: self._run_id}

        def started(imports: Sequence[str]) -> Server:
            patience_s = self._options.patience_s(launch)
            return Server(imports, environment, log, patience_s, place, given_up=launch.given_up)

        server = started(launch.imports if self._options.warm else ())
        if server.cuda_touched:
            # the ranks then import for themselves; the record says so (environment.warm)
            server.close()
            server = started(())
        self._servers[key] = server
        return server

    def _sweep(self) -> None:
        """Kill what a rank has started and left behind."""
        kill_tagged(self._run_id, spare={server.pid for server in self._servers.values()})


def _problem(server: Server, launch: Launch, share: Share) -> LaunchError | None:
    """Why *server* has not begun its *share* of *launch*; None if it has."""
    server.launch(launch, share)
    if server.answer("pids", _PATIENCE_S, launch.given_up):
        return None
    return server.lost(silent=True)


class _LocalHandle(Handle):
    def __init__(self, server: Server, share: Share, sweep: Callable[[], None]) -> None:
        self._server = server
        self._left = set(range(share.first, share.first + share.count))
        # the event after that of the pids
        self.port = int((server.answer("port", _PATIENCE_S) or {"port": 0})["port"])
        self._sweep = sweep

    def wait(self, seconds: float) -> list[Exit]:
        exits = [exit_of(event) for event in self._server.events(seconds) if "exit" in event]
        self._left -= {each.rank for each in exits}
        if self._left and not exits and (lost := self._server.lost()):
            self._left.clear()
            raise lost
        return exits

    def signal(self, number: int) -> None:
        self._server.send({"signal": number})

    def states(self) -> Mapping[int, str]:
        self._server.send({"states": True})
        told = self._server.answer("states", _STATES_S)
        return {int(rank): letter for rank, letter in told["states"].items()} if told else {}

    def stop(self) -> None:
        if self._left:
            self._server.send({"stop": True})
        end = time.monotonic() + _PATIENCE_S
        # where it is lost its ranks are gone, too
        with suppress(LaunchError):
            while self._left and time.monotonic() < end:
                self.wait(0.05)
            if self._left:
                self._server.lost(silent=True)
        self._sweep()
