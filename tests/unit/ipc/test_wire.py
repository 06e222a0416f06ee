"""Connections of agents: who knows the token gets in, and nobody else gets a word in."""

import hashlib
import os
import resource
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from distbench.ipc.channels import (
    AGENT_ROLE,
    CONTROLLER_ROLE,
    PROTOCOL,
    AuthenticatedChannel,
    ChannelError,
    new_token,
)
from distbench.ipc.messages import FileChunk, LaunchFailed, LaunchStopped, Message, StopLaunch
from support.agent_channels import send_encoded
from support.shell_jobs import soon

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connected_pair() -> Iterator[Callable[[], Pair]]:
    """Makes connections over TCP: the controller's end and the agent's."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def made() -> Pair:
            theirs = stack.enter_context(socket.create_connection(listener.getsockname()))
            return stack.enter_context(listener.accept()[0]), theirs

        yield made


def channel_pair(pair: Pair, token: str, other: str) -> tuple[AuthenticatedChannel, AuthenticatedChannel]:
    with ThreadPoolExecutor() as both:
        controller = both.submit(AuthenticatedChannel, pair[0], token, CONTROLLER_ROLE)
        agent = both.submit(AuthenticatedChannel, pair[1], other, AGENT_ROLE)
        return controller.result(), agent.result()


def test_messages_arrive_whole_and_in_their_order(connected_pair):
    token = new_token()
    controller, agent = channel_pair(connected_pair(), token, token)
    sent = [LaunchFailed("é" * n) for n in (1, 100_000, 3)]
    for message in sent:
        controller.send(message)
    got: list[Message] = []
    while len(got) < len(sent):
        got += agent.receive(5)
    assert got == sent
    agent.send(LaunchStopped())
    assert controller.receive(5) == [LaunchStopped()]
    agent.close()
    assert controller.receive(5) == []
    assert not controller.alive


def test_the_other_end_is_not_silent_while_nobody_has_read_what_it_said(connected_pair):
    token, pair = new_token(), connected_pair()
    controller, agent = channel_pair(pair, token, token)
    controller.send(StopLaunch())
    # it has come, whatever took so long on this end
    with selectors.DefaultSelector() as selector:
        selector.register(pair[1], selectors.EVENT_READ)
        assert selector.select(60)
    assert agent.seconds_silent() == 0
    while not agent.receive(5):
        pass
    agent.close()
    assert agent.seconds_silent() > 0


def test_who_does_not_know_the_token_is_refused(connected_pair):
    with pytest.raises(ChannelError, match="wrong token"):
        channel_pair(connected_pair(), new_token(), new_token())


def test_who_sends_back_what_it_was_sent_is_refused(connected_pair):
    ours, theirs = connected_pair()

    def reflect() -> None:
        theirs.sendall(theirs.recv(11, socket.MSG_WAITALL))
        theirs.sendall(theirs.recv(32, socket.MSG_WAITALL) * 2)

    threading.Thread(target=reflect).start()
    with pytest.raises(ChannelError, match="wrong token"):
        AuthenticatedChannel(ours, new_token(), CONTROLLER_ROLE)


def test_a_handshake_that_was_overheard_is_of_no_use(connected_pair):
    token, heard = new_token(), bytearray()
    ours, theirs = connected_pair()
    near, far = connected_pair()

    def overhear() -> None:
        far.sendall(theirs.recv(11, socket.MSG_WAITALL))
        heard.extend(far.recv(11, socket.MSG_WAITALL))
        theirs.sendall(heard)
        far.sendall(theirs.recv(32, socket.MSG_WAITALL))
        heard.extend(proof := far.recv(64, socket.MSG_WAITALL))
        theirs.sendall(proof)
        far.sendall(theirs.recv(32, socket.MSG_WAITALL))

    threading.Thread(target=overhear).start()
    channel_pair((ours, near), token, token)
    again, stranger = connected_pair()
    stranger.sendall(heard)
    with pytest.raises(ChannelError, match="wrong token"):
        AuthenticatedChannel(again, token, CONTROLLER_ROLE)


UNKNOWN = f"the other end speaks an unknown protocol, this end protocol {PROTOCOL} of distbench"


@pytest.mark.parametrize(
    ("stray", "told"),
    [
        pytest.param(b"", "no handshake: the other end closed the connection", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n" * 9, UNKNOWN, id="another protocol"),
        pytest.param(bytes(4096), UNKNOWN, id="zeros"),
        pytest.param(
            b"distbench\1\2", f"speaks protocol 258, this end protocol {PROTOCOL} of", id="another version"
        ),
    ],
)
@pytest.mark.parametrize("role", [CONTROLLER_ROLE, AGENT_ROLE])
def test_a_stray_connection_is_refused(connected_pair, stray, told, role):
    ours, theirs = connected_pair()
    theirs.sendall(stray)
    if not stray:
        theirs.shutdown(socket.SHUT_WR)
    # one that speaks another protocol is not waited for
    with pytest.raises(ChannelError, match=told):
        AuthenticatedChannel(ours, new_token(), role, 600)
    assert ours.fileno() == -1


@pytest.mark.parametrize("length", [2, (4 << 20) + 1, 1 << 31])
def test_what_somebody_puts_into_a_connection_ends_it(connected_pair, length):
    token = new_token()
    pair = connected_pair()
    controller, agent = channel_pair(pair, token, token)
    controller.send(StopLaunch())
    assert agent.receive(5) == [StopLaunch()]
    pair[0].sendall(struct.pack(">I", length) + bytes(hashlib.sha256().digest_size) + b"{}")
    with pytest.raises(ChannelError, match="wrong authentication code"):
        agent.receive(5)
    assert not agent.alive


def test_an_end_that_is_alive_is_never_silent_for_long(connected_pair):
    token = new_token()
    controller, _agent = channel_pair(connected_pair(), token, token)
    for _ in range(3):
        assert controller.receive(2.5) == []
        assert controller.seconds_silent() < 1


@pytest.mark.drill("bytes that nobody has authenticated trickle into a connection")
def test_bytes_that_nobody_has_authenticated_are_no_sign_of_life(connected_pair, drill):
    token, pair = new_token(), connected_pair()
    controller, agent = channel_pair(pair, token, token)
    # all that follows, heartbeats too, is taken for the rest of this frame
    pair[0].sendall(struct.pack(">I", 1 << 20))
    soon(lambda: not agent.receive(0.1) and agent.seconds_silent() > 3, "it seemed alive", 20)
    drill.seen("nothing: the end counts as silent")
    controller.close()


def test_a_message_that_comes_in_pieces_is_whole(connected_pair):
    token = new_token()
    controller, agent = channel_pair(connected_pair(), token, token)
    sent = FileChunk("weights", 0, data=os.urandom(3 << 20))
    threading.Thread(target=controller.send, args=[sent], daemon=True).start()
    got: list[Message] = []
    soon(lambda: got.extend(agent.receive(1)) or got, "nothing came")
    assert got == [sent]


def test_a_descriptor_may_be_above_those_that_select_knows(connected_pair):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        token = new_token()
        controller, agent = channel_pair(connected_pair(), token, token)
        assert agent.fileno() > 1023
        controller.send(StopLaunch())
        assert agent.receive(10) == [StopLaunch()]
        assert agent.seconds_silent() < 10
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_message_that_the_other_end_would_not_take_is_not_sent(connected_pair):
    token = new_token()
    controller, agent = channel_pair(connected_pair(), token, token)
    with pytest.raises(ChannelError, match=r"invalid message: 4,194,3\d\d bytes, the maximum is 4,194,304"):
        controller.send(FileChunk("weights", 0, data=b"x" * (4 << 20)))
    controller.send(StopLaunch())
    assert agent.receive(10) == [StopLaunch()]


@pytest.mark.parametrize(
    "text",
    [
        *(b"no JSON", b"[1]", b"\xff\xfe", b"[" * 200_000, b'{"a": ' + b"9" * 5000 + b"}"),
        *(b"{}", b'{"type": "Unheard"}', b'{"type": ["StopLaunch"]}', b'{"type": "Message"}'),
        b'{"type": "RankExit", "rank": "0", "code": 0, "at": 0.0}',
    ],
)
def test_what_the_other_end_could_not_have_meant_ends_the_connection_with_a_reason(connected_pair, text):
    token = new_token()
    controller, agent = channel_pair(connected_pair(), token, token)
    send_encoded(agent, text)
    with pytest.raises(ChannelError, match=r"(a|invalid) message"):
        for _ in range(10):
            controller.receive(1)
    assert not controller.alive
