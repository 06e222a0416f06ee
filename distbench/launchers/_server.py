"""The launcher's end of the socket to a warm parent (``distbench.worker.server`` is the other)."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distbench.launchers.base import HERE, LaunchError, Place


def server_command(descriptor: str, imports: Sequence[str], place: Place = HERE) -> list[str]:
    """Return the command of a warm parent that listens on socket *descriptor*."""
    return [place.python, "-m", "distbench.worker", "serve", descriptor, *imports]


class Server:
    """A running warm parent, ready for requests."""

    def __init__(
        self,
        imports: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        timeout_s: float,
        place: Place = HERE,
    ) -> None:
        """Start it and wait until it is ready.

        Raises:
            LaunchError: it ended, or was not ready within *timeout_s* seconds.
        """
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                server_command(str(theirs.fileno()), imports, place),
                env=dict(environment),
                cwd=place.folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # its own session: Ctrl-C in the terminal reaches the command line only
                start_new_session=True,
            )
        self._pending = b""
        self.cuda_touched = False
        """Whether an import has initialised CUDA, so that its children can't use it."""
        self._open = True
        self._await_ready(log, timeout_s)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._open

    def send(self, request: dict[str, Any]) -> None:
        """Send *request*; nothing happens if it has ended."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            self._open = False

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """Return what it has said, waiting up to *seconds* for the first word."""
        if not self._open:
            return []
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if not readable:
            return []
        received = _receive(self._socket)
        self._open = bool(received)
        *lines, self._pending = (self._pending + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End it; it kills its ranks first."""
        self._socket.close()
        self._open = False
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_ready(self, log: Path, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and self._open:
            for event in self.events(left):
                if "ready" in event:
                    self.cuda_touched = bool(event["cuda_touched"])
                    return
        why = f"was not ready within {timeout_s:g} s" if self._open else "ended"
        self._process.kill()
        self.close()
        tail = log.read_text(errors="replace")[-2000:]
        raise LaunchError(f"the warm parent of the ranks {why}; its log {log} ends with:\n{tail}")


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""
