"""Client of the fork server of ranks (``distbench.worker.fork_server``)."""

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from distbench.ipc.channels import ChannelError, wait_readable
from distbench.ipc.launch_spec import CURRENT_PYTHON, WORKER_ARGUMENTS, LaunchSpec, PythonTarget
from distbench.ipc.local_channel import LocalChannel
from distbench.ipc.messages import (
    ForkServerReady,
    Heartbeat,
    HeartbeatQuery,
    LaunchStarted,
    Message,
    StartLaunch,
)
from distbench.launchers.base import CancelCheck, LaunchError, never_cancelled
from distbench.system import cgroup_memory
from distbench.system.processes import exit_text, kill_tree, process_state, runqueue_seconds

_ANSWER_TIMEOUT_S = 10.0
# between an answer and the next query; a query costs a timed rank next to nothing, but not nothing
_PING_AFTER_S = 2.0
_POLL_S = 0.25
M = TypeVar("M", bound=Message)

_STATE_TEXTS = {"T": "it is stopped", "t": "a debugger has stopped it", "D": "it waits for a device"}


def fork_server_command(
    descriptor: str, imports: Sequence[str], target: PythonTarget = CURRENT_PYTHON
) -> list[str]:
    """Command of a fork server that listens on socket *descriptor*."""
    return [target.python, *WORKER_ARGUMENTS, "serve", descriptor, *imports]


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
        is_cancelled: CancelCheck = never_cancelled,
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
        ours, theirs = socket.socketpair()
        # a reader that stopped reading must not block the writer
        self._channel = LocalChannel(ours, answer_timeout_s)
        try:
            with theirs:
                self._process = _start_process(imports, environment, log, target, theirs.fileno())
        except LaunchError:
            self._channel.close()
            raise
        self._unread: list[Message] = []
        self._answer_timeout_s, self._silent_s = answer_timeout_s, 0.0
        self._is_ready, self._pinged, self._heard_at = False, False, time.monotonic()
        self._memory = cgroup_memory.read_cgroup_memory()
        self._failure: LaunchError | None = None
        self.initialized_cuda = False
        """True if an import has initialised CUDA, so that its children can't use it."""
        self._wait_ready(log, import_timeout_s, is_cancelled)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while it responds."""
        return self._channel.alive

    def send(self, request: Message) -> None:
        """Send *request*, unless the process has exited."""
        self._channel.send(request)

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> int:
        """Start the ranks of *spec*; return the port of their rendezvous.

        Raises:
            LaunchError: the process has exited, or does not answer in time or until the launch is cancelled;
                it was killed.
        """
        self._memory = cgroup_memory.read_cgroup_memory()
        self.send(StartLaunch(spec))
        if started := self.wait_for(LaunchStarted, self._answer_timeout_s, is_cancelled):
            return started.port
        lost = self.failure(silent=True)
        assert lost
        raise lost

    def read_events(self, seconds: float) -> list[Message]:
        """Events since the last call, waiting up to *seconds* for the first."""
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        return self._receive(seconds)

    def wait_for(
        self, kind: type[M], seconds: float, is_cancelled: CancelCheck = never_cancelled
    ) -> M | None:
        """Wait up to *seconds* for the next event of this *kind*; buffer the others.

        None if there is none in time, or if cancelled. On a busy machine, time in which the process is ready
        to run and gets no CPU does not count.
        """
        end = time.monotonic() + seconds - runqueue_seconds(self.pid)
        while (found := next((event for event in self._unread if isinstance(event, kind)), None)) is None:
            left = end + runqueue_seconds(self.pid) - time.monotonic()
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
        self._channel.close()
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
        self._channel.close()

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

    def _receive(self, seconds: float) -> list[Message]:
        if not self.alive:
            return []
        if self._is_ready and not self._pinged and time.monotonic() - self._heard_at > _PING_AFTER_S:
            self.send(HeartbeatQuery())
            self._pinged = True
        began = time.monotonic()
        if not wait_readable([self._channel], seconds):
            # only time spent waiting counts: after a sleep of the machine, the server has slept, too
            self._silent_s += min(seconds, time.monotonic() - began) if self._pinged else 0.0
            return []
        self._pinged, self._silent_s, self._heard_at = False, 0.0, time.monotonic()
        try:
            return [event for event in self._channel.receive() if not isinstance(event, Heartbeat)]
        except ChannelError as error:
            self._kill()
            self._failure = LaunchError(f"{self._name} is of another version of distbench: {error}")
            return []

    def _wait_ready(self, log: Path, timeout_s: float, is_cancelled: CancelCheck) -> None:
        if ready := self.wait_for(ForkServerReady, timeout_s, is_cancelled):
            self._is_ready, self.initialized_cuda = True, ready.initialized_cuda
            return
        if self._failure:
            raise self._failure
        why = f"was not ready within {timeout_s:g} s" if self.alive else "exited"
        if is_cancelled():
            why = "was cancelled"
        self._kill()
        tail = log.read_text(errors="replace")[-2000:]
        # its last line is the error, and tables show the first line of a reason
        last_line = "".join(f": {line}" for line in tail.strip().splitlines()[-1:])
        where = f"; its log {log} ends with:\n{tail}" if tail.strip() else f"; its log {log} is empty"
        raise LaunchError(f"{self._name} {why}{last_line}{where}")


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
