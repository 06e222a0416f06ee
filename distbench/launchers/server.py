"""The launcher's end of the socket to a warm parent of ranks (``distbench.worker.server`` is the other)."""

import json
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distbench.launchers.base import HERE, Launch, LaunchError, Place
from distbench.processes import Share


def server_command(descriptor: str, imports: Sequence[str], place: Place = HERE) -> list[str]:
    """Command of a warm parent that listens on socket *descriptor*."""
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
            LaunchError: it exited, or was not ready within *timeout_s* seconds.
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
        self.alive = True
        """Whether it still responds."""
        self._await_ready(log, timeout_s)

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

    def launch(self, launch: Launch, share: Share) -> None:
        """Start *share* of the ranks of *launch*; an event ``{"port": n}`` then reports their rendezvous."""
        request = {
            "entry": launch.entry,
            "file": str(launch.file),
            "share": asdict(share),
            "environment": {**launch.environment, **launch.place.environment},
            "leftovers": list(launch.leftovers),
        }
        self.send({"launch": request})

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """Events since the last call, waiting up to *seconds* for the first."""
        if not self.alive:
            return []
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if not readable:
            return []
        received = b""
        with suppress(ConnectionResetError):
            received = self._socket.recv(1 << 16)
        self.alive = bool(received)
        *lines, self._pending = (self._pending + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the process, which kills its ranks first."""
        self._socket.close()
        self.alive = False
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_ready(self, log: Path, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and self.alive:
            for event in self.events(left):
                if "ready" in event:
                    self.cuda_touched = bool(event["cuda_touched"])
                    return
        why = f"was not ready within {timeout_s:g} s" if self.alive else "exited"
        self._process.kill()
        self.close()
        tail = log.read_text(errors="replace")[-2000:]
        raise LaunchError(f"the worker server {why}; its log {log} ends with:\n{tail}")
