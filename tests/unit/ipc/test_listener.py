"""Strangers at a listener: neither many of them nor a lack of descriptors keeps out who knows the token."""

import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distbench.ipc.channels import AuthenticatedChannel, ChannelError, connect_to_controller, new_token
from distbench.ipc.listener import ChannelListener
from distbench.ipc.messages import LaunchStopped
from support.shell_jobs import soon

STRANGERS = """
import selectors, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
watched = selectors.DefaultSelector()
def come(): watched.register(socket.create_connection(("127.0.0.1", port)), selectors.EVENT_READ)
for _ in range(count): come()
print("all have come", flush=True)
while True:
    for key, _ in watched.select():
        try: said = key.fileobj.recv(64)
        except OSError: said = b""
        if not said:
            watched.unregister(key.fileobj)
            key.fileobj.close()
            come()
"""


class Door:
    """A listener, the channels that have come through it, and the strangers in front of it."""

    def __init__(self) -> None:
        self.token = new_token()
        self.met: list[AuthenticatedChannel] = []
        self.listener = ChannelListener(self.token, 0, self.met.append)
        self._strangers: list[subprocess.Popen[str]] = []

    def crowd(self, count: int) -> None:
        """Have *count* strangers connect that say nothing, and come again when they are dropped."""
        words = [sys.executable, "-c", STRANGERS, str(self.listener.port), str(count)]
        self._strangers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert self._strangers[-1].stdout
        assert self._strangers[-1].stdout.readline() == "all have come\n"

    def join(self) -> None:
        """Connect as an agent does, with further tries."""

        def connect() -> None:
            for _ in range(5):
                try:
                    joined.append(connect_to_controller([f"127.0.0.1:{self.listener.port}"], self.token))
                    return
                except ChannelError:
                    continue

        joined: list[AuthenticatedChannel] = []
        agent = threading.Thread(target=connect, daemon=True)
        agent.start()
        while agent.is_alive():
            self.listener.accept_next()
        soon(lambda: self.met, "the agent did not get in")
        joined[0].send(LaunchStopped())
        assert self.met[0].receive(10) == [LaunchStopped()]
        joined[0].close()

    def close(self) -> None:
        for each in self._strangers:
            each.kill()
            each.communicate()
        self.listener.close()
        for channel in self.met:
            channel.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


@contextmanager
def open_files_limit(more: int) -> Iterator[None]:
    """Let this process open only *more* files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.drill("500 strangers connect to the controller, say nothing, and come again")
def test_a_crowd_of_strangers_does_not_keep_out_an_agent(door):
    door.crowd(500)
    door.join()


def test_the_number_of_handshakes_is_limited(door):
    door.crowd(200)
    before = threading.active_count()
    running = []
    for _ in range(300):
        door.listener.accept_next()
        running.append(threading.active_count() - before)
    assert 60 <= max(running) <= 64


@pytest.mark.drill("strangers take all descriptors that the controller may open")
def test_an_agent_gets_in_though_strangers_take_all_descriptors(door):
    door.crowd(100)
    with open_files_limit(40):
        door.join()


def test_a_lack_of_descriptors_is_waited_out(door):
    first = socket.create_connection(("127.0.0.1", door.listener.port))
    with open_files_limit(0):
        # nobody is lost, and nothing is raised
        for _ in range(3):
            door.listener.accept_next()
    first.settimeout(10)
    door.listener.accept_next()
    assert first.recv(9, socket.MSG_WAITALL) == b"distbench"
    first.close()
