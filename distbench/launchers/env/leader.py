"""First process of a node other than the controller's: starts the agents of its node on request.

It needs no torch. Its agents are its children and end with it, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from distbench.core.errors import InfrastructureError
from distbench.ipc.channels import (
    SILENCE_TIMEOUT_S,
    AuthenticatedChannel,
    ChannelError,
    connect_to_controller,
)
from distbench.ipc.messages import EndRun, JoinRefused, JoinRun, Message, StartAgent
from distbench.launchers.env.address import ControllerAddress
from distbench.launchers.nodes import AGENT_ARGUMENTS, FOLLOW_PARENT
from distbench.system.rank_variables import JobPlacement

_RETRY_S, _POLL_S = 0.25, 0.25
# a launcher ends all processes at once: the controller then stores the trial, which needs the agents
_GRACE_S = 10.0
_STOP_S = 5.0


class NodeLeader:
    """Serves the controller until it ends the run."""

    def __init__(self, channel: AuthenticatedChannel) -> None:
        self._channel = channel
        self._agents: list[subprocess.Popen[bytes]] = []
        self._run_ended = False

    def serve(self) -> None:
        """Start agents on request until the end of the run.

        Raises:
            InfrastructureError: the controller is gone, or refuses this process.
            KeyboardInterrupt: the launcher ends this process, and the controller goes on.
        """
        try:
            with _termination_time() as terminated_at:
                while not self._run_ended and self._channel.alive:
                    if terminated_at and time.monotonic() > terminated_at[0] + _GRACE_S:
                        raise KeyboardInterrupt
                    if self._channel.seconds_silent() > SILENCE_TIMEOUT_S:
                        break
                    for message in self._channel.receive(_POLL_S):
                        self._handle(message)
        except ChannelError as error:
            raise InfrastructureError(f"lost the controller (rank 0): {error}") from error
        finally:
            self._channel.close()
            self._stop_agents()
        if not self._run_ended:
            raise InfrastructureError("lost the controller (rank 0), or its node")

    def _handle(self, message: Message) -> None:
        match message:
            case StartAgent():
                self._agents.append(_start_agent(message.variables))
            case JoinRefused():
                raise InfrastructureError(message.reason)
            case EndRun():
                self._run_ended = True
            case _:
                raise ChannelError(f"no message to the first process of a node: {message}")

    def _stop_agents(self) -> None:
        """End the agents, each of which ends by itself when its session has."""
        for agent in self._agents:
            for end in (agent.terminate, agent.kill):
                try:
                    agent.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    end()
            # a process in an uninterruptible wait ends when the kernel lets it
            with suppress(subprocess.TimeoutExpired):
                agent.wait(_STOP_S)


def join_controller(
    own: JobPlacement,
    find_controller: Callable[[], ControllerAddress | None],
    seconds: float,
    where: str,
) -> NodeLeader:
    """Connect to the controller as the process in the place *own*.

    Args:
        find_controller: Returns its current address; None: not known yet.
        seconds: Seconds in which it has to answer.
        where: Place where it is looked for, for the message.

    Raises:
        InfrastructureError: it does not answer.
    """
    end, why = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        if address := find_controller():
            try:
                channel = connect_to_controller(address.addresses, address.token)
            except ChannelError as error:
                # the file may be that of an earlier job, until the controller replaces it
                why = f": {error}"
            else:
                channel.send(JoinRun(own.rank, own.world_size, own.local_world_size))
                return NodeLeader(channel)
        time.sleep(_RETRY_S)
    raise InfrastructureError(f"no controller (rank 0) within {seconds:g} s {where}{why}")


def _start_agent(variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *AGENT_ARGUMENTS, FOLLOW_PARENT],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        # signals of the launcher reach this process only
        start_new_session=True,
    )


@contextmanager
def _termination_time() -> Iterator[list[float]]:
    """Times of the signals so far that end this process; SIGUSR1 is the controller's matter."""
    came: list[float] = []

    def note(number: int, _: Any) -> None:
        if number != signal.SIGUSR1:
            came.append(time.monotonic())

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    # nohup ignores SIGHUP
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
