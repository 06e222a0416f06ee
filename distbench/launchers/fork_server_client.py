"""Client of the fork server of ranks (``distbench.worker.fork_server``)."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distbench.ipc.messages import wait_readable
from distbench.launchers.base import CURRENT_PYTHON, LaunchError, LaunchSpec, PythonTarget, RankExit
from distbench.system import cgroup_memory
from distbench.system.processes import RankRange, exit_text, kill_tree, process_state

_ANSWER_TIMEOUT_S = 10.0
# between an answer and the next query; a query costs a timed rank next to nothing, but not nothing
_PING_AFTER_S = 2.0
_POLL_S = 0.25
_STATE_TEXTS = {"T": "it is stopped", "t": "a debugger has stopped it", "D": "it waits for a device"}


def fork_server_command(
    descriptor: str, imports: Sequence[str], target: PythonTarget = CURRENT_PYTHON
) -> list[str]:
    """Command of a fork server that listens on socket *descriptor*."""
    return [target.python, "-m", "distbench.worker", "serve", descriptor, *imports]


def parse_exit(event: dict[str, Any]) -> RankExit:
    """Parse the end of a rank from *event*."""
    memory = event.get("memory")
    return RankExit(
        event["exit"], event["code"], event["at"], cgroup_memory.CgroupMemory(**memory) if memory else None
    )


class ForkServerClient:
    """A running fork server, ready for requests.

    While a caller waits for it, it is asked for a heartbeat, so that a stopped or hung one is noticed.
    """

    def __init__(
        self,
        imports: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        import_timeout_s: float,
        target: PythonTarget = CURRENT_PYTHON,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        """Start it and wait until it is ready.

        Args:
            import_timeout_s: Seconds for its imports.
            is_cancelled: Returns True to stop waiting for it.
            answer_timeout_s: Seconds for an answer, once it is ready.

        Raises:
            LaunchError: it exited, was not ready within *import_timeout_s* seconds, or was cancelled.
        """
        self._socket, theirs = socket.socketpair()
        # a reader that stopped reading must not block the writer
        self._socket.settimeout(answer_timeout_s)
        try:
            with theirs:
                self._process = _start_process(imports, environment, log, target, theirs.fileno())
        except LaunchError:
            self._socket.close()
            raise
        self._pending = b""
        self._unread: list[dict[str, Any]] = []
        self._answer_timeout_s, self._silent_s = answer_timeout_s, 0.0
        self._pinged, self._heard_at = False, time.monotonic()
        self._answers_pings = False
        self._memory = cgroup_memory.read_cgroup_memory()
        self._failure: LaunchError | None = None
        self.initialized_cuda = False
        """True if an import has initialised CUDA, so that its children can't use it."""
        self.alive = True
        """True while it responds."""
        self._wait_ready(log, import_timeout_s, is_cancelled)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, request: dict[str, Any]) -> None:
        """Send *request*, unless the process has exited."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            self.alive = False

    def launch(self, launch: LaunchSpec, ranks: RankRange) -> None:
        """Start *ranks* of the ranks of *launch*.

        Events ``{"pids": [...]}`` and then ``{"port": n}``, of their rendezvous, report success.
        """
        request = {
            "entry": launch.entry,
            "file": str(launch.instructions),
            "share": asdict(ranks),
            "environment": {**launch.environment, **launch.target.environment},
            "leftovers": list(launch.leftovers),
        }
        self._memory = cgroup_memory.read_cgroup_memory()
        self.send({"launch": request})

    def read_events(self, seconds: float) -> list[dict[str, Any]]:
        """Events since the last call, waiting up to *seconds* for the first."""
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        return self._receive(seconds)

    def wait_for(
        self, word: str, seconds: float, is_cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        """Wait up to *seconds* for the next event with *word*; buffer the others.

        None if there is none in time, or if cancelled.
        """
        end = time.monotonic() + seconds
        while (found := next((event for event in self._unread if word in event), None)) is None:
            left = end - time.monotonic()
            if not self.alive or is_cancelled() or left <= 0:
                return None
            self._unread += self._receive(min(_POLL_S, left))
        self._unread.remove(found)
        return found

    def failure(self, *, silent: bool = False) -> LaunchError | None:
        """Return the error that ended the server, after killing its ranks; None: it is alive.

        Args:
            silent: It has not answered in time.
        """
        if self._failure is None and self.alive and (silent or self._silent_s > self._answer_timeout_s):
            why = _STATE_TEXTS.get(process_state(self.pid), "it hangs")
            self._failure = LaunchError(f"killed {self._name}, because it did not answer ({why})")
            self._kill()
        if self._failure is None and not self.alive:
            self._failure = self._exit_error()
        return self._failure

    def close(self) -> None:
        """End the process, which kills its ranks first."""
        self._socket.close()
        self.alive = False
        # a stopped process would not see that the socket is closed
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout=_ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        """Kill the process and all its descendants, whatever their state."""
        kill_tree(self.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ANSWER_TIMEOUT_S)
        self._socket.close()
        self.alive = False

    @property
    def _name(self) -> str:
        return f"the fork server of the ranks (process {self.pid})"

    def _exit_error(self) -> LaunchError:
        now = cgroup_memory.read_cgroup_memory()
        try:
            code = self._process.wait(timeout=_ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return LaunchError(f"killed {self._name}, because it closed its socket")
        memory = now.since(self._memory) if now and code == -signal.SIGKILL else None
        return LaunchError(f"{self._name} {exit_text(code)}", memory)

    def _receive(self, seconds: float) -> list[dict[str, Any]]:
        if not self.alive:
            return []
        if self._answers_pings and not self._pinged and time.monotonic() - self._heard_at > _PING_AFTER_S:
            self.send({"ping": True})
            self._pinged = True
        began = time.monotonic()
        if not wait_readable([self._socket], seconds):
            # only time spent waiting counts: after a sleep of the machine, the server has slept, too
            self._silent_s += min(seconds, time.monotonic() - began) if self._pinged else 0.0
            return []
        self._pinged, self._silent_s, self._heard_at = False, 0.0, time.monotonic()
        received = b""
        with suppress(ConnectionResetError):
            received = self._socket.recv(1 << 16)
        self.alive = bool(received)
        *lines, self._pending = (self._pending + received).split(b"\n")
        events = [json.loads(line) for line in lines]
        return [event for event in events if "pong" not in event]

    def _wait_ready(self, log: Path, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        if ready := self.wait_for("ready", timeout_s, is_cancelled):
            self.initialized_cuda = bool(ready["cuda_touched"])
            # an earlier version, as in an arm of a gate, does not support this query
            self._answers_pings = bool(ready.get("answers"))
            return
        why = f"was not ready within {timeout_s:g} s" if self.alive else "exited"
        if is_cancelled():
            why = "was cancelled"
        self._kill()
        tail = log.read_text(errors="replace")[-2000:]
        # its last line is the error, and tables show the first line of a reason
        told = "".join(f": {line}" for line in tail.strip().splitlines()[-1:])
        where = f"; its log {log} ends with:\n{tail}" if tail.strip() else f"; its log {log} is empty"
        raise LaunchError(f"{self._name} {why}{told}{where}")


def _start_process(
    imports: Sequence[str], environment: Mapping[str, str], log: Path, target: PythonTarget, descriptor: int
) -> subprocess.Popen[bytes]:
    """Start the process of a fork server, its output in *log*.

    Raises:
        LaunchError: there is no such Python, or no such folder, as when they are removed while a run goes on;
            or its log can't be written.
    """
    try:
        output = log.open("ab")
    except OSError as error:
        raise LaunchError(f"can't write {log}: {error.strerror}") from error
    try:
        with output:
            return subprocess.Popen(
                fork_server_command(str(descriptor), imports, target),
                env=dict(environment),
                cwd=target.working_directory,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # its own session: Ctrl-C in the terminal reaches the command line only
                start_new_session=True,
            )
    except OSError as error:
        where = f" in {target.working_directory}" if error.filename == target.working_directory else ""
        raise LaunchError(f"can't start {target.python}{where}: {error.strerror}") from error
