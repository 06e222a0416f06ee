"""Both ends of connections to agents, over TCP as always, without the agents."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from distbench.ipc.channels import AGENT_ROLE, CONTROLLER_ROLE, AuthenticatedChannel, new_token


def channel_pair() -> tuple[AuthenticatedChannel, AuthenticatedChannel]:
    """The controller's end of a connection, and the agent's."""
    token = new_token()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as both:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
        roles = zip(ends, (AGENT_ROLE, CONTROLLER_ROLE), strict=True)
        agent, controller = (both.submit(AuthenticatedChannel, end, token, role) for end, role in roles)
        return controller.result(), agent.result()


def send_encoded(channel: AuthenticatedChannel, data: bytes) -> None:
    """Send *data* by *channel* as a message, whatever it is."""
    channel._send_frame(data)
