"""Channel to a fork server over a socket pair, which only the two processes have."""

from __future__ import annotations

import socket
from contextlib import suppress

from distbench.ipc.channels import ChannelError
from distbench.ipc.messages import Message, MessageError, decode_message, encode_message


class LocalChannel:
    """One end of a socket pair between a process and its fork server; each line is a message."""

    def __init__(self, connection: socket.socket, timeout_s: float | None = None) -> None:
        """Use *connection*, whose other end may stop reading for *timeout_s* seconds; None: for ever."""
        self._socket, self._pending = connection, b""
        connection.settimeout(timeout_s)
        self.alive = True
        """True until the other end is closed."""

    def fileno(self) -> int:
        """Descriptor, for ``select``."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send *message*, unless the other end is closed."""
        try:
            self._socket.sendall(encode_message(message) + b"\n")
        except OSError:
            self.alive = False

    def receive(self) -> list[Message]:
        """Return received messages, waiting for some data; none if the other end is closed.

        Raises:
            ChannelError: the data is no message.
        """
        received = b""
        with suppress(ConnectionResetError):
            received = self._socket.recv(1 << 16)
        self.alive = bool(received)
        *lines, self._pending = (self._pending + received).split(b"\n")
        try:
            return [decode_message(line) for line in lines]
        except MessageError as error:
            raise ChannelError(str(error)) from error

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        self.alive = False
