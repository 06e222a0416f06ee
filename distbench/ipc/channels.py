"""Channels that carry messages to and from an agent over TCP.

Both ends know the token of the run, which no message contains. The handshake: each end sends the number of
its protocol, so that two versions tell each other apart. The controller sends a nonce, the agent answers with
its own and the HMAC-SHA256 of its role and both nonces under the token, and the controller sends the same for
its role. A nonce is used once and a role once, so neither a replayed nor a reflected proof is valid. Then
each message is a frame: its length (4 bytes), its HMAC under a key derived from the token and both nonces,
and the message. The HMAC covers the direction, the number of the frame in it, and the message, so a changed,
repeated, missing or injected message ends the connection. Nothing is encrypted: an eavesdropper can read all
messages.

Each end sends an empty frame every second, from a thread of its own, so an end that is stopped, or whose
host or network is gone, falls silent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from distbench.ipc.messages import Message, MessageError, decode_message, encode_message

TOKEN_VARIABLE = "DISTBENCH_TOKEN"
"""Environment variable with the token of a run, for its agents."""

CONTROLLERS_VARIABLE = "DISTBENCH_CONTROLLERS"
"""Environment variable with the addresses of the controller, ``host:port`` separated by commas."""

NODE_VARIABLE = "DISTBENCH_NODE"
"""Environment variable with the name of an agent's node; by default the name of its host."""

PATIENCE_VARIABLE = "DISTBENCH_PATIENCE_S"
"""Environment variable with the seconds that an agent tries to reach a controller, also a lost one.

Without it an agent tries again only where a handshake has failed, and ends with its connection.
"""

CONTROLLER_ROLE, AGENT_ROLE = b"controller", b"agent"
"""Roles of the two ends."""

SILENCE_TIMEOUT_S = 30.0
"""Silence after which an end counts as gone: both send something every second."""

HANDSHAKE_TIMEOUT_S = 5.0
"""Time for both ends to authenticate each other."""

PROTOCOL = 1
"""Number of the protocol. Raise it with every change that an older end would misread."""

_PROTOCOL_NAME, _GREETING = b"distbench", struct.Struct(">9sH")
_CONNECT_TIMEOUT_S = 5.0
# a connection may wait at the controller behind others
_AGENT_HANDSHAKE_TIMEOUT_S = 10.0
_NONCE_BYTES, _MAC_BYTES = 32, hashlib.sha256().digest_size
_LENGTH = struct.Struct(">I")
# kept before its HMAC can be verified; the largest are samples of a node, and chunks of files
_MAX_MESSAGE_BYTES = 4 << 20
# until the kernel ends a connection whose other host is gone (man 7 tcp)
_USER_TIMEOUT_MS = 15_000
_HEARTBEAT_S = 1.0


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound=int | _HasDescriptor)


def wait_readable(sources: Iterable[T], seconds: float | None) -> list[T]:
    """Wait up to *seconds* for readable *sources* (descriptors or objects with one), and return those.

    ``select`` takes no descriptor above 1,023, and a controller of many agents has some; ``epoll`` takes one
    of its own, and none may be left.
    """
    with selectors.PollSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ, source)
        return [key.data for key, _ in selector.select(seconds)]


class ChannelError(Exception):
    """The other end does not know the token, or is gone."""


class HandshakeError(ChannelError):
    """The other end has taken the connection, but not proved in time that it knows the token."""


class ProtocolError(ChannelError):
    """The other end speaks another protocol; another try does not help."""


def new_token() -> str:
    """Token of a run: 256 random bits, as hexadecimal digits."""
    return secrets.token_hex(32)


class AuthenticatedChannel:
    """One end of a connection whose other end has proved that it knows the token."""

    def __init__(
        self, connection: socket.socket, token: str, role: bytes, seconds: float = HANDSHAKE_TIMEOUT_S
    ) -> None:
        """Authenticate both ends of *connection*, which is closed if that fails.

        Args:
            role: Role of this end: ``CONTROLLER_ROLE`` or ``AGENT_ROLE``.
            seconds: Time that it may take.

        Raises:
            HandshakeError: the other end does not know *token*, or does not prove it in time.
            ProtocolError: it speaks another protocol.
        """
        self._socket, self._role = connection, role
        self._other = AGENT_ROLE if role == CONTROLLER_ROLE else CONTROLLER_ROLE
        self._sent = self._received = 0
        self._pending = bytearray()
        self._sending = threading.Lock()
        self._heard_at = time.monotonic()
        self.alive = True
        """True until the connection is closed."""
        try:
            self.peer = plain_address(connection.getpeername()[0])
            """Address of the other end."""
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            self._key = self._handshake(token.encode(), time.monotonic() + seconds)
        except ProtocolError:
            connection.close()
            raise
        except (OSError, ChannelError) as error:
            connection.close()
            raise HandshakeError(f"no handshake: {error}") from error
        # an end that does not read must not block the one that writes
        connection.settimeout(_USER_TIMEOUT_MS / 1000)
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    @property
    def address(self) -> str:
        """Address of this end, at which the other end's host reaches this host."""
        return plain_address(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """Descriptor, for ``select``."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send *message*, unless the other end is gone.

        Raises:
            ChannelError: it is larger than the other end accepts.
        """
        encoded = encode_message(message)
        if len(encoded) > _MAX_MESSAGE_BYTES:
            # the other end would treat it as a message that nobody has sent
            raise ChannelError(
                f"invalid message: {len(encoded):,} bytes, the maximum is {_MAX_MESSAGE_BYTES:,}"
            )
        self._send_frame(encoded)

    def receive(self, seconds: float) -> list[Message]:
        """Return received messages, waiting up to *seconds* for the first.

        Raises:
            ChannelError: the data is not from the other end, is out of order, or is no message; the
                connection is closed.
        """
        if not self.alive or not wait_readable([self._socket], seconds):
            return []
        received = b""
        with suppress(OSError):
            received = self._socket.recv(1 << 20)
        self.alive = bool(received)
        self._pending += received
        try:
            # heartbeats are empty
            return [decode_message(frame) for frame in iter(self._next_frame, None) if frame]
        except MessageError as error:
            self.close()
            raise ChannelError(str(error)) from error

    def seconds_silent(self) -> float:
        """Seconds since the other end was last heard; 0 while there is unread data.

        An end that starts ranks reads nothing meanwhile, and imports on a busy node may exceed the limit.
        """
        if self.alive and wait_readable([self._socket], 0):
            return 0.0
        return time.monotonic() - self._heard_at

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self.alive = False

    def _send_heartbeats(self) -> None:
        while self.alive:
            time.sleep(_HEARTBEAT_S)
            self._send_frame(b"")

    def _send_frame(self, data: bytes) -> None:
        with self._sending:
            frame = _LENGTH.pack(len(data)) + self._mac(self._role, self._sent, data) + data
            self._sent += 1
            try:
                self._socket.sendall(frame)
            except OSError:
                self.alive = False

    def _next_frame(self) -> bytes | None:
        """Next complete frame of the received data; None if there is none yet."""
        head = _LENGTH.size + _MAC_BYTES
        if len(self._pending) < head:
            return None
        (length,) = _LENGTH.unpack_from(self._pending)
        if length <= _MAX_MESSAGE_BYTES and len(self._pending) < head + length:
            return None
        mac, data = bytes(self._pending[_LENGTH.size : head]), bytes(self._pending[head : head + length])
        if length > _MAX_MESSAGE_BYTES or not hmac.compare_digest(
            mac, self._mac(self._other, self._received, data)
        ):
            self.close()
            raise ChannelError("invalid message (wrong authentication code or too large)")
        self._received += 1
        # bytes that nobody has authenticated are no sign of life
        self._heard_at = time.monotonic()
        del self._pending[: head + length]
        return data

    def _mac(self, sender: bytes, number: int, data: bytes) -> bytes:
        return _hmac(self._key, sender, struct.pack(">Q", number), data)

    def _handshake(self, token: bytes, end: float) -> bytes:
        """Authenticate both ends before *end*, and return the key of this connection."""
        self._compare_protocols(end)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        if self._role == CONTROLLER_ROLE:
            self._socket.sendall(nonce)
            theirs = self._receive_exactly(_NONCE_BYTES, end)
            nonces = nonce + theirs
            self._verify(token, nonces, end)
            self._socket.sendall(_hmac(token, CONTROLLER_ROLE, nonces))
        else:
            nonces = self._receive_exactly(_NONCE_BYTES, end) + nonce
            self._socket.sendall(nonce + _hmac(token, AGENT_ROLE, nonces))
            self._verify(token, nonces, end)
        return _hmac(token, b"key", nonces)

    def _compare_protocols(self, end: float) -> None:
        self._socket.sendall(_GREETING.pack(_PROTOCOL_NAME, PROTOCOL))
        name, number = _GREETING.unpack(self._receive_exactly(_GREETING.size, end))
        if (name, number) != (_PROTOCOL_NAME, PROTOCOL):
            other = f"protocol {number}" if name == _PROTOCOL_NAME else "an unknown protocol"
            raise ProtocolError(
                f"the other end speaks {other}, this end protocol {PROTOCOL} of distbench; install the same "
                "distbench on both"
            )

    def _verify(self, token: bytes, nonces: bytes, end: float) -> None:
        if not hmac.compare_digest(self._receive_exactly(_MAC_BYTES, end), _hmac(token, self._other, nonces)):
            raise ChannelError("authentication failed: wrong token")

    def _receive_exactly(self, size: int, end: float) -> bytes:
        data = b""
        while len(data) < size:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            received = self._socket.recv(size - len(data))
            if not received:
                raise ChannelError("the other end closed the connection")
            data += received
        return data


def plain_address(address: str) -> str:
    """IPv4 *address* as such: a socket for both versions of IP has it mapped into IPv6."""
    return address.removeprefix("::ffff:")


def host_and_port(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an IPv6 address, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connect_to_controller(addresses: Sequence[str], token: str) -> AuthenticatedChannel:
    """Connect as an agent to the first of *addresses* (by ``host_and_port``) where the controller answers.

    Raises:
        HandshakeError: one of them takes connections, and its end does not know *token*, or was too slow.
        ChannelError: none of them can be reached.
    """
    failures, kind = [], ChannelError
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S)
            return AuthenticatedChannel(connection, token, AGENT_ROLE, _AGENT_HANDSHAKE_TIMEOUT_S)
        except (OSError, ChannelError) as error:
            failures.append(f"{address}: {error}")
            kind = HandshakeError if isinstance(error, HandshakeError) else kind
    raise kind(f"can't reach the controller: {'; '.join(failures)}")


def _hmac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) of *parts*, each prefixed by its length, so no two lists are alike."""
    whole = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return hmac.digest(key, whole, "sha256")
