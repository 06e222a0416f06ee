"""Fork server: import torch once, then fork the ranks of each trial.

Importing torch and deepspeed takes every rank of every trial seconds; forking a process that has imported
them takes milliseconds and gives a process as clean as a new one. The parent has one thread and never
initialises CUDA, so that its children can.

It communicates over a socket, one JSON object per line. In: ``{"launch": {...}}``, ``{"signal": n}``,
``{"states": true}``, ``{"ping": true}``, ``{"stop": true}``. Out: ``{"ready": pid, "cuda_touched": bool,
"answers": true}`` (pings), ``{"pids": [...]}``, ``{"port": n}`` of the rendezvous, ``{"states": {rank:
letter}}``, ``{"pong": true}``, ``{"exit": rank, "code": n, "at": time, "memory": account}``, ``{"idle":
true}`` when all ranks have ended. When the other end closes, the run is over, and every rank is killed: a
killed command leaves nothing behind.

Processes that ranks leave behind become children of this one, whatever their environment and session, and
end with the trial.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distbench.core.serialization import decode
from distbench.ipc.messages import wait_readable
from distbench.ipc.trial_files import log_file
from distbench.system import cgroup_memory, clock
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import (
    RankRange,
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
        self._control = control
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
        self._send({"ready": os.getpid(), "cuda_touched": _has_initialised_cuda(), "answers": True})
        pending = b""
        while True:
            readable = wait_readable([self._control.fileno(), self._wake_read], None)
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._control.fileno() in readable:
                received = self._control.recv(1 << 16)
                if not received:
                    self._shut_down()
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._handle_request(json.loads(line))

    def _handle_request(self, request: dict[str, Any]) -> None:
        if "launch" in request:
            self._launch(**request["launch"])
        elif "signal" in request:
            self._signal_ranks(request["signal"])
        elif "states" in request:
            self._send({"states": {rank: process_state(pid) for pid, rank in self._ranks.items()}})
        elif "stop" in request:
            self._signal_ranks(signal.SIGKILL)
        elif "ping" in request:
            self._send({"pong": True})

    def _launch(
        self, entry: str, file: str, share: dict[str, Any], environment: dict[str, str], leftovers: list[str]
    ) -> None:
        own = decode(RankRange, share, "launch request")
        port, listener = own.master_port, None
        if own.has_rank_0:
            # only the host of rank 0 knows which of its ports is free
            listener = socket.create_server((own.master_address, port), backlog=own.world_size)
            port = listener.getsockname()[1]
        self._leftovers = [pattern.format(port=port) for pattern in leftovers]
        self._memory = cgroup_memory.read_cgroup_memory()
        for local_rank in range(own.count):
            variables, rank = {**environment, **own.environment(local_rank, port)}, own.first + local_rank
            pid = os.fork()
            if pid == 0:
                self._run_rank(entry, Path(file), rank, variables, listener)
            self._ranks[pid] = rank
        if listener:
            listener.close()
        self._send({"pids": sorted(self._ranks)})
        self._send({"port": port})

    def _run_rank(
        self, entry: str, file: Path, rank: int, variables: dict[str, str], listener: socket.socket | None
    ) -> None:
        """Turn this forked child into a rank; never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with_parent(self._pid)
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            _redirect_output(log_file(file.parent, rank))
            os.environ.update(variables)
            descriptor = listener.fileno() if listener and rank == 0 else None
            if entry == "prepare":
                from distbench.worker.prepare import build_items

                build_items(file)
            elif entry == "examine":
                from distbench.worker.examine import run_diagnosis

                run_diagnosis(file, descriptor)
            else:
                from distbench.worker.rank import run_rank

                run_rank(file, descriptor)
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
        self._send({"idle": True})

    def _report_exit(self, rank: int, code: int) -> None:
        now = cgroup_memory.read_cgroup_memory() if code == -signal.SIGKILL else None
        memory = now.since(self._memory) if now else None
        told = {"exit": rank, "code": code, "at": clock.now()}
        self._send({**told, "memory": asdict(memory) if memory else None})

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

    def _send(self, event: dict[str, Any]) -> None:
        try:
            self._control.sendall(json.dumps(event).encode() + b"\n")
        except OSError:
            # the other end is closed, as the next read would show too
            self._shut_down()


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
