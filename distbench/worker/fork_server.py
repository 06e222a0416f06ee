"""Fork server: import torch once, then fork the ranks of each trial.

Importing torch and deepspeed takes every rank of every trial seconds; forking a process that has imported
them takes milliseconds and gives a process as clean as a new one. The parent has one thread and never
initialises CUDA, so that its children can.

Requests and events are messages of ``distbench.ipc.messages``, on a socket. When the other end closes, the
run is over, and every rank is killed: a killed command leaves nothing behind.

Processes that ranks leave behind become children of this one, whatever their environment and session, and
end with the trial.
"""

import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path

from distbench.ipc.channels import wait_readable
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.local_channel import LocalChannel
from distbench.ipc.messages import (
    ForkServerReady,
    Heartbeat,
    HeartbeatQuery,
    LaunchStarted,
    Message,
    MessageError,
    QueryStates,
    RankExit,
    RankStates,
    SignalRanks,
    StartLaunch,
    StopLaunch,
)
from distbench.ipc.trial_files import log_file
from distbench.system import cgroup_memory, clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import (
    adopt_orphans,
    child_pids,
    die_with_parent,
    kill_children,
    kill_run,
    process_state,
    resume_without_parent,
    send_signal,
)


def run_fork_server(control: socket.socket, imports: list[str]) -> None:
    """Import *imports*, then serve requests from *control* until its other end closes."""
    # while it imports, it can't notice that its parent was killed, so the kernel watches
    die_with_parent(os.getppid())
    for module in imports:
        _import(module)
    # from here on it notices, unless it is stopped
    resume_without_parent()
    # imported objects never become garbage, and a collection in a child would copy all of their pages
    gc.collect()
    gc.freeze()
    ForkServer(control).run()


def _import(module: str) -> None:
    """Import *module*, unless the installed version of its package lacks it."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        is_a_part = "." in (error.name or "") and f"{module}.".startswith(f"{error.name}.")
        if not is_a_part:
            raise
        # a rank that needs it reports so itself


class ForkServer:
    """Fork server; serves one trial at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = LocalChannel(control)
        self._pid = os.getpid()
        self._ranks: dict[int, int] = {}
        self._leftovers: list[str] = []
        self._memory = cgroup_memory.read_cgroup_memory()
        # children of imported modules
        self._own_children = child_pids()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def run(self) -> None:
        """Serve until the other end of the control socket closes."""
        adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._send(ForkServerReady(_has_initialised_cuda()))
        while True:
            readable = wait_readable([self._channel.fileno(), self._wake_read], None)
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._channel.fileno() in readable:
                for request in self._channel.receive():
                    self._handle_request(request)
                if not self._channel.alive:
                    self._shut_down()

    def _handle_request(self, request: Message) -> None:
        match request:
            case StartLaunch():
                self._launch(request.spec)
            case SignalRanks():
                self._signal_ranks(request.number)
            case QueryStates():
                states = ((rank, process_state(pid)) for pid, rank in self._ranks.items())
                self._send(RankStates(tuple(states)))
            case StopLaunch():
                self._signal_ranks(signal.SIGKILL)
            case HeartbeatQuery():
                self._send(Heartbeat())
            case _:
                raise MessageError(f"no request to a fork server: {request}")

    def _launch(self, spec: LaunchSpec) -> None:
        own = spec.local_ranks
        port, listener = own.master_port, None
        if own.has_rank_0:
            # only the host of rank 0 knows which of its ports is free
            family = socket.AF_INET6 if ":" in own.master_address else socket.AF_INET
            address = own.master_address, port
            listener = socket.create_server(address, family=family, backlog=own.world_size)
            port = listener.getsockname()[1]
        self._leftovers = [pattern.format(port=port) for pattern in spec.leftovers]
        self._memory = cgroup_memory.read_cgroup_memory()
        for local_rank, rank in enumerate(own.ranks):
            pid = os.fork()
            if pid == 0:
                self._run_rank(spec, rank, own.environment(local_rank, port), listener)
            self._ranks[pid] = rank
        if listener:
            listener.close()
        self._send(LaunchStarted(port))

    def _run_rank(
        self, spec: LaunchSpec, rank: int, placement: dict[str, str], listener: socket.socket | None
    ) -> None:
        """Turn this forked child into a rank; never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with_parent(self._pid)
            self._channel.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            _redirect_output(log_file(spec.folder, rank))
            os.environ.update({**spec.variables, **placement})
            descriptor = listener.fileno() if listener and rank == 0 else None
            run_command(spec.command, spec.instructions, descriptor)
            code = 0
        except BaseException:
            # an entry that has not reported it already has a log for it
            traceback.print_exc()
        finally:
            # never unwind into the copy of the server's loop
            os._exit(code)

    def _reap(self) -> None:
        if not self._ranks:
            # an orphan that was killed after the trial, or a child of an imported module
            return
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._ranks:
                self._report_exit(self._ranks.pop(pid), os.waitstatus_to_exitcode(status))
        kill_children(exclude=self._own_children)
        self._remove_leftovers()

    def _report_exit(self, rank: int, code: int) -> None:
        now = cgroup_memory.read_cgroup_memory() if code == -signal.SIGKILL else None
        memory = now.since(self._memory) if now else None
        self._send(RankExit(rank, code, clock.now(), memory))

    def _remove_leftovers(self) -> None:
        for pattern in self._leftovers:
            root = Path("/") if pattern.startswith("/") else Path.cwd()
            for left in root.glob(pattern.lstrip("/")):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
        self._leftovers = []

    def _signal_ranks(self, number: int) -> None:
        for pid in self._ranks:
            send_signal(pid, number)

    def _shut_down(self) -> None:
        self._signal_ranks(signal.SIGKILL)
        kill_children()
        kill_run(os.environ[RUN_ID_VARIABLE])
        self._remove_leftovers()
        os._exit(0)

    def _send(self, event: Message) -> None:
        self._channel.send(event)
        if not self._channel.alive:
            # the other end is closed, as the next read would show too
            self._shut_down()


def run_command(command: str, instructions: Path, listen_fd: int | None = None) -> None:
    """Run *command*, a ``WorkerCommand``, with *instructions* in this process.

    Args:
        listen_fd: Listening socket of the rendezvous, for rank 0; None: it opens one if it is rank 0.
    """
    if command == "prepare":
        from distbench.worker.prepare import build_items

        build_items(instructions)
    elif command == "examine":
        from distbench.worker.examine import run_diagnosis

        run_diagnosis(instructions, listen_fd)
    else:
        from distbench.worker.rank import run_rank

        run_rank(instructions, listen_fd)


def _has_initialised_cuda() -> bool:
    """True if an import has initialised CUDA, which forked ranks could then not use.

    Checked in a child, as this process may not know: torch counts MIG instances by calling CUDA without
    initialising itself.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    has_called = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    # without a driver, the import of a CUDA build looks for devices, but there is nothing to spoil
    return has_called and torch.cuda.is_available()


def _redirect_output(log: Path) -> None:
    with Path(os.devnull).open() as null, log.open("a") as file:
        os.dup2(null.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
