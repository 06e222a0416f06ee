"""``local``: the ranks on this machine, forked from a fork server that has imported torch once."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.bounds import Positive
from distbench.core.case import TimeLimits
from distbench.core.machine import Machine
from distbench.launchers.base import Launcher, LaunchError, LaunchSession, LaunchSpec, RankExit, RunningLaunch
from distbench.launchers.fork_server_client import ForkServerClient, fork_server_command, parse_exit
from distbench.launchers.visible import visible_devices_by_index
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import RankRange, kill_run

# for a launch, and for the end of all ranks: both take a fork server milliseconds
_ANSWER_TIMEOUT_S = 10.0
_STATES_S = 2.0
_LOOPBACK = "lo"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that select the interface of gloo and NCCL; gloo would use the address of the host's name."""


@dataclass(frozen=True)
class Local(Launcher):
    """Processes on this machine, whose sockets are on the loopback interface.

    Another interface is taken from the environment: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME.
    """

    supports_environments: ClassVar[bool] = True

    warm: bool = True
    """Fork the ranks of every trial from one process that has imported torch (and deepspeed);
    false: every trial imports it again."""
    oversubscribe: bool = False
    """Allow more ranks than CPU cores; timings are then not meaningful."""
    start_timeout: Positive | None = None
    """Seconds, above 0, that the fork server may take to import torch and deepspeed; null: ``limits.start``,
    at least 120."""

    def problem(self, processes: int, machine: Machine) -> str | None:
        if processes <= machine.devices:
            return None
        if machine.device == "cuda":
            return f"{processes} ranks need {processes} GPUs, but this machine has {machine.devices}"
        if self.oversubscribe:
            return None
        return (
            f"{processes} ranks need {processes} CPU cores, but this machine has {machine.devices}; use "
            "fewer ranks, or launcher.local.oversubscribe: true if timings don't matter"
        )

    def environment(self) -> Mapping[str, str]:
        import pynvml

        gpus = visible_devices_by_index(pynvml, os.environ)
        if _LOOPBACK not in [name for _, name in socket.if_nameindex()]:
            return gpus
        return {**gpus, **{name: _LOOPBACK for name in INTERFACE_VARIABLES if name not in os.environ}}

    def commands(self, launch: LaunchSpec) -> list[list[str]]:
        """Commands of the fork server and of each rank; a forked rank runs the same code."""
        worker = [launch.target.python, "-m", "distbench.worker", launch.entry, str(launch.instructions)]
        size = launch.processes
        ranks = [["env", f"RANK={rank}", f"WORLD_SIZE={size}", *worker] for rank in range(size)]
        return [
            fork_server_command("CONTROL_SOCKET", launch.imports if self.warm else (), launch.target),
            *ranks,
        ]

    def import_limit_s(self, launch: LaunchSpec) -> float:
        """Seconds that the fork server of the ranks of *launch* may take to import."""
        return self.start_timeout or max(TimeLimits().start, launch.start_s)

    def open_session(self, run_id: str) -> LaunchSession:
        return _LocalSession(self, run_id)


class _LocalSession(LaunchSession):
    """Keeps one fork server for each environment that the strategies request."""

    def __init__(self, options: Local, run_id: str) -> None:
        self._options = options
        self._run_id = run_id
        self._servers: dict[Any, ForkServerClient] = {}

    def launch(self, launch: LaunchSpec) -> RunningLaunch:
        server, share = (
            self._server_for(launch),
            launch.ranks or RankRange(launch.processes, launch.processes),
        )
        if why := _launch_error(server, launch, share):
            if launch.is_cancelled() or any(launch.instructions.parent.glob("rank*.progress")):
                raise why
            # it ended or was stopped between two trials; neither of them fails because of that
            server = self._server_for(launch, log_text=f"{why}\n")
            if why := _launch_error(server, launch, share):
                raise why
        return _LocalLaunch(server, share, self._kill_leftovers)

    def restart_fork_servers(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def close(self) -> None:
        self.restart_fork_servers()
        kill_run(self._run_id)

    def _server_for(self, launch: LaunchSpec, log_text: str = "") -> ForkServerClient:
        """Fork server for *launch*, kept or new; *log_text* goes to the log of a new one."""
        place = launch.target
        environment = {**launch.environment, **place.environment}
        key = (
            tuple(launch.imports),
            tuple(sorted(environment.items())),
            place.python,
            place.working_directory,
        )
        if kept := self._servers.pop(key, None):
            if self._options.warm and kept.alive:
                self._servers[key] = kept
                return kept
            kept.close()
        log = launch.instructions.parent / "warm_parent.log"
        with log.open("a") as stream:
            stream.write(log_text)
        environment = {
            **os.environ,
            **environment,
            **clock.clock_environment(),
            RUN_ID_VARIABLE: self._run_id,
        }

        def started(imports: Sequence[str]) -> ForkServerClient:
            patience_s = self._options.import_limit_s(launch)
            return ForkServerClient(
                imports, environment, log, patience_s, place, is_cancelled=launch.is_cancelled
            )

        server = started(launch.imports if self._options.warm else ())
        if server.initialized_cuda:
            # the ranks then import for themselves; the record notes it (environment.warm)
            server.close()
            server = started(())
        self._servers[key] = server
        return server

    def _kill_leftovers(self) -> None:
        """Kill processes that a rank has started and left behind."""
        kill_run(self._run_id, exclude={server.pid for server in self._servers.values()})


def _launch_error(server: ForkServerClient, launch: LaunchSpec, ranks: RankRange) -> LaunchError | None:
    """Reason why *server* has not started its *ranks* of *launch*; None if it has."""
    server.launch(launch, ranks)
    if server.wait_for("pids", _ANSWER_TIMEOUT_S, launch.is_cancelled):
        return None
    return server.failure(silent=True)


class _LocalLaunch(RunningLaunch):
    def __init__(
        self, server: ForkServerClient, ranks: RankRange, kill_leftovers: Callable[[], None]
    ) -> None:
        self._server = server
        self._left = set(range(ranks.first, ranks.first + ranks.count))
        # the event after that of the pids
        self.port = int((server.wait_for("port", _ANSWER_TIMEOUT_S) or {"port": 0})["port"])
        self._kill_leftovers = kill_leftovers

    def wait(self, seconds: float) -> list[RankExit]:
        exits = [parse_exit(event) for event in self._server.read_events(seconds) if "exit" in event]
        self._left -= {each.rank for each in exits}
        if self._left and not exits and (lost := self._server.failure()):
            self._left.clear()
            raise lost
        return exits

    def signal(self, number: int) -> None:
        self._server.send({"signal": number})

    def process_states(self) -> Mapping[int, str]:
        self._server.send({"states": True})
        told = self._server.wait_for("states", _STATES_S)
        return {int(rank): letter for rank, letter in told["states"].items()} if told else {}

    def stop(self) -> None:
        if self._left:
            self._server.send({"stop": True})
        end = time.monotonic() + _ANSWER_TIMEOUT_S
        # if the fork server is lost, its ranks are gone, too
        with suppress(LaunchError):
            while self._left and time.monotonic() < end:
                self.wait(0.05)
            if self._left:
                self._server.failure(silent=True)
        self._kill_leftovers()
