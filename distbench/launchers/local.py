"""``local``: the ranks on this machine, forked from a fork server that has imported torch once."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from distbench.core.bounds import Positive
from distbench.core.machine import Machine
from distbench.core.measurement import TimeLimits
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import (
    QueryStates,
    RankExit,
    RankStates,
    SignalRanks,
    StopLaunch,
)
from distbench.launchers.base import (
    CancelCheck,
    Launcher,
    LaunchError,
    LaunchSession,
    NodesUnavailableError,
    RunningLaunch,
    never_cancelled,
)
from distbench.launchers.fork_server_client import ForkServerClient, fork_server_command
from distbench.system import clock
from distbench.system.cpus import cpu_quota
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.network_interfaces import (
    INTERFACE_VARIABLES,
    LOOPBACK,
    InterfaceError,
    network_interfaces,
    selected_interfaces,
)
from distbench.system.processes import kill_run

# for a launch, and for the end of all ranks: both take a fork server milliseconds
_ANSWER_TIMEOUT_S = 10.0
_STATES_S = 2.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


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
        quota = cpu_quota()
        # the affinity mask may be tighter
        is_quota = quota is not None and quota < len(os.sched_getaffinity(0))
        own = f"a CPU quota allows {quota:g}" if is_quota else f"this machine has {machine.devices}"
        return (
            f"{processes} ranks need {processes} CPU cores, but {own}; use "
            "fewer ranks, or launcher.local.oversubscribe: true if timings don't matter"
        )

    def environment(self) -> Mapping[str, str]:
        import pynvml

        gpus = visible_devices_by_index(pynvml, os.environ)
        if LOOPBACK not in [each.name for each in network_interfaces()]:
            return gpus
        return {**gpus, **{name: LOOPBACK for name in INTERFACE_VARIABLES if name not in os.environ}}

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        """Commands of the fork server and of each rank; a forked rank runs the same code."""
        size, worker = spec.processes, spec.worker_command()
        ranks = [["env", f"RANK={rank}", f"WORLD_SIZE={size}", *worker] for rank in range(size)]
        imports = spec.imports if self.warm else ()
        return [fork_server_command("CONTROL_SOCKET", imports, spec.target), *ranks]

    def import_limit_s(self, spec: LaunchSpec) -> float:
        """Seconds that the fork server of the ranks of *spec* may take to import."""
        return self.start_timeout or max(TimeLimits().start, spec.start_s)

    def open_session(self, run_id: str) -> LaunchSession:
        return _LocalSession(self, run_id)


def visible_devices_by_index(nvml: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with GPU indices in place of the UUIDs in *environment*, which DeepSpeed can't read.

    (``_get_nvml_gpu_id`` of its accelerator for CUDA, which the build of ZeRO 1 and 2 calls.) Empty: there
    are no UUIDs, or they are not all of whole GPUs of this machine.

    Args:
        nvml: The module ``pynvml``, or one like it.
    """
    names = [part.strip() for part in environment.get(_VISIBLE, "").split(",")]
    if not all(name.startswith("GPU-") for name in names):
        return {}
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except nvml.NVMLError:
        return {}
    # CUDA also accepts the beginning of a UUID
    found = [[i for i, uuid in enumerate(uuids) if uuid.startswith(name)] for name in names]
    if any(len(numbers) != 1 for numbers in found):
        return {}
    # NVML counts by bus; CUDA does so only on request
    return {_VISIBLE: ",".join(str(numbers[0]) for numbers in found), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class _LocalSession(LaunchSession):
    """Keeps one fork server for each environment that the strategies request."""

    def __init__(self, options: Local, run_id: str) -> None:
        self._options = options
        self._run_id = run_id
        self._servers: dict[Any, ForkServerClient] = {}

    def prepare(self, spec: LaunchSpec, is_cancelled: CancelCheck) -> None:
        self._server_for(spec, is_cancelled)

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        spec = replace(spec, ranks=spec.local_ranks)
        _check_interfaces(spec)
        server = self._server_for(spec, is_cancelled)
        try:
            port = server.launch(spec, is_cancelled)
        except LaunchError as error:
            if is_cancelled() or any(spec.folder.glob("rank*.progress")):
                raise
            # it ended or was stopped between two trials; neither of them fails because of that
            server = self._server_for(spec, is_cancelled, log_text=f"{error}\n")
            port = server.launch(spec, is_cancelled)
        return _LocalLaunch(server, spec.local_ranks.ranks, port, self._kill_leftovers)

    def restart_fork_servers(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def close(self) -> None:
        self.restart_fork_servers()
        kill_run(self._run_id)

    def _server_for(
        self, spec: LaunchSpec, is_cancelled: CancelCheck, log_text: str = ""
    ) -> ForkServerClient:
        """Fork server for *spec*, kept or new; *log_text* goes to the log of a new one."""
        target = spec.target
        key = spec.imports, tuple(sorted(spec.variables.items())), target.python, target.working_directory
        if kept := self._servers.pop(key, None):
            if self._options.warm and kept.alive:
                self._servers[key] = kept
                return kept
            kept.close()
        log = spec.folder / "warm_parent.log"
        with log.open("a") as stream:
            stream.write(log_text)
        environment = {
            **os.environ,
            **spec.variables,
            **clock.clock_environment(),
            RUN_ID_VARIABLE: self._run_id,
        }

        def started(imports: Sequence[str]) -> ForkServerClient:
            import_limit_s = self._options.import_limit_s(spec)
            return ForkServerClient(
                imports, environment, log, import_limit_s, target, is_cancelled=is_cancelled
            )

        server = started(spec.imports if self._options.warm else ())
        if server.initialized_cuda:
            # the ranks then import for themselves; the record notes it (environment.warm)
            server.close()
            server = started(())
        self._servers[key] = server
        return server

    def _kill_leftovers(self) -> None:
        """Kill processes that a rank has started and left behind."""
        kill_run(self._run_id, exclude={server.pid for server in self._servers.values()})


def _check_interfaces(spec: LaunchSpec) -> None:
    """Check that the ranks of *spec* can open their sockets.

    Raises:
        NodesUnavailableError: they can't.
    """
    try:
        selected_interfaces(network_interfaces(), {**os.environ, **spec.variables}, spec.device)
    except InterfaceError as error:
        raise NodesUnavailableError(str(error)) from error


class _LocalLaunch(RunningLaunch):
    def __init__(
        self, server: ForkServerClient, ranks: Iterable[int], port: int, kill_leftovers: Callable[[], None]
    ) -> None:
        self._server, self._left, self.port = server, set(ranks), port
        self._kill_leftovers = kill_leftovers

    def wait(self, seconds: float) -> list[RankExit]:
        exits = [event for event in self._server.read_events(seconds) if isinstance(event, RankExit)]
        self._left -= {each.rank for each in exits}
        if self._left and not exits and (lost := self._server.failure()):
            self._left.clear()
            raise lost
        return exits

    def signal(self, number: int) -> None:
        self._server.send(SignalRanks(number))

    def process_states(self) -> Mapping[int, str]:
        self._server.send(QueryStates())
        answer = self._server.wait_for(RankStates, _STATES_S)
        return dict(answer.states) if answer else {}

    def stop(self) -> None:
        if self._left:
            self._server.send(StopLaunch())
        end = time.monotonic() + _ANSWER_TIMEOUT_S
        # if the fork server is lost, its ranks are gone, too
        with suppress(LaunchError):
            while self._left and time.monotonic() < end:
                self.wait(0.05)
            if self._left:
                self._server.failure(silent=True)
        self._kill_leftovers()
