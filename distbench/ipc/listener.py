"""Listener for connections whose other end has to prove that it knows the token.

Anybody may connect. So only some handshakes run at a time, the next comers wait in the kernel's queue, and a
crowd gets less time than a few: strangers that say nothing neither take all descriptors nor hold up agents.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from distbench.ipc.channels import (
    CONTROLLER_ROLE,
    HANDSHAKE_TIMEOUT_S,
    AuthenticatedChannel,
    ChannelError,
    ProtocolError,
    host_and_port,
    plain_address,
)
from distbench.system.network_interfaces import network_interfaces

_MAX_HANDSHAKES = 64
_CROWD = 16
# a queue of 1,024 strangers is through before an agent at its end gives up
_CROWD_TIMEOUT_S = 0.25
_POLL_S = 0.25


class ChannelListener:
    """Accepts connections at a port, and authenticates each in a thread of its own."""

    def __init__(self, token: str, port: int, serve: Callable[[AuthenticatedChannel], None]) -> None:
        """Listen.

        Args:
            port: Port to listen on; 0: any that is free.
            serve: Called with each authenticated channel, in its thread.

        Raises:
            OSError: another process listens there.
        """
        self._token, self._serve = token, serve
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=is_dual, backlog=1024)
        self._listener.settimeout(_POLL_S)
        self.other_protocol = ""
        """The last connection with another protocol, by an agent or a stranger; empty: there was none."""
        self._handshakes = 0
        self._changed = threading.Condition()

    @property
    def port(self) -> int:
        """Port at which it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def addresses(self) -> list[str]:
        """All addresses of this host that others may reach, each with the port; IPv4 comes first."""
        found = [ipaddress.ip_address(each) for own in network_interfaces() for each in own.addresses]
        # a loopback address leads to the other end's own host; a link-local one needs an interface there
        hosts = sorted((host for host in found if not host.is_link_local), key=_host_order)
        return [host_and_port(str(host), self.port) for host in hosts]

    def accept_next(self) -> None:
        """Wait up to a quarter of a second for the next connection, and begin its handshake."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._handshakes < _MAX_HANDSHAKES, _POLL_S):
                return
        try:
            connection, (address, *_) = self._listener.accept()
        except TimeoutError:
            return
        except OSError:
            # no descriptor is left, and the next try would fail at once; or the other end has left
            time.sleep(_POLL_S)
            return
        with self._changed:
            self._handshakes += 1
            seconds = HANDSHAKE_TIMEOUT_S if self._handshakes <= _CROWD else _CROWD_TIMEOUT_S
        threading.Thread(
            target=self._authenticate, args=[connection, plain_address(address), seconds], daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening."""
        # wakes a thread that accepts
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _authenticate(self, connection: socket.socket, host: str, seconds: float) -> None:
        try:
            channel = AuthenticatedChannel(connection, self._token, CONTROLLER_ROLE, seconds)
        except ProtocolError as error:
            self.other_protocol = f"{host}: {error}"
            return
        except ChannelError:
            # a stranger
            return
        finally:
            with self._changed:
                self._handshakes -= 1
                self._changed.notify()
        self._serve(channel)


def _host_order(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[bool, int]:
    return host.is_loopback, host.version
