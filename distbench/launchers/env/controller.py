"""Controller's side of the connections to the first process of each other node.

They last for the command, over all of its sessions: each session has agents of its own, which those processes
start on request. They end when the controller says so, or is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distbench.ipc.channels import SILENCE_TIMEOUT_S, AuthenticatedChannel, ChannelError
from distbench.ipc.listener import ChannelListener
from distbench.ipc.messages import EndRun, JoinRefused, JoinRun, StartAgent
from distbench.launchers.base import LaunchError
from distbench.launchers.env.address import ControllerAddress
from distbench.launchers.nodes import AgentProcesses, StartedAgents
from distbench.system.rank_variables import JobPlacement

_POLL_S = 1.0
# a launcher starts all processes at about the same time; the command may end before the last has connected
_LATE_S, _LATE_POLL_S = 10.0, 0.1


class NodeLeaders:
    """First processes of the other nodes: connected ones, and those that still may connect."""

    def __init__(self, own: JobPlacement, token: str, port: int = 0) -> None:
        """Listen for them, as the controller in the place *own*.

        Args:
            port: Port to which they connect; 0: any that is free.

        Raises:
            OSError: another process listens there.
        """
        self._own, self._token = own, token
        self._channels: dict[int, AuthenticatedChannel] = {}
        self._requests: list[StartAgent] = []
        self._problem = ""
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = ChannelListener(token, port, self._serve)
        threading.Thread(target=self._accept_all, daemon=True).start()

    def address(self) -> ControllerAddress:
        """Address at which it listens."""
        return ControllerAddress(self._listener.addresses, self._token)

    def own_address(self) -> str:
        """Address at which other nodes reach this host; empty: none has connected yet."""
        with self._lock:
            return next((channel.address for channel in self._channels.values() if channel.alive), "")

    def problem(self) -> str | None:
        """Reason why not all of them can start agents; None if they may."""
        return self._problem or None

    def add_request(self, request: StartAgent) -> None:
        """Have each start an agent, those that connect later too."""
        with self._lock:
            self._requests.append(request)
            for channel in self._channels.values():
                channel.send(request)

    def remove_request(self, request: StartAgent) -> None:
        """Have no more of them start that agent."""
        with self._lock:
            self._requests.remove(request)

    def close(self) -> None:
        """Release them, those too that are late: the command ends."""
        end = time.monotonic() + _LATE_S
        while len(self._channels) < self._own.node_count - 1 and not self._problem and time.monotonic() < end:
            time.sleep(_LATE_POLL_S)
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
        self._listener.close()
        for channel in channels:
            channel.send(EndRun())
            channel.close()

    def _accept_all(self) -> None:
        while not self._is_closed:
            self._listener.accept_next()

    def _serve(self, channel: AuthenticatedChannel) -> None:
        try:
            place = self._place_of(channel)
        except ChannelError as error:
            self._problem = f"the first process on {channel.peer}: {error}"
            channel.close()
            return
        if place is None:
            return
        if why := self._add(place, channel):
            channel.send(JoinRefused(why))
            channel.close()
            return
        self._read_to_end(channel, place.rank)

    def _place_of(self, channel: AuthenticatedChannel) -> JoinRun | None:
        """Place of the process at the other end; None if its connection ends before it says so.

        Raises:
            ChannelError: it says something else.
        """
        while channel.alive and channel.seconds_silent() < SILENCE_TIMEOUT_S:
            for message in channel.receive(_POLL_S):
                if not isinstance(message, JoinRun):
                    raise ChannelError(f"a message {type(message).__name__} in place of JoinRun")
                return message
        return None

    def _add(self, place: JoinRun, channel: AuthenticatedChannel) -> str:
        """Add the process in *place*; return the reason if it is none of this job."""
        own, sizes = self._own, (place.world_size, place.local_world_size)
        with self._lock:
            if sizes != (own.world_size, own.local_world_size):
                self._problem = (
                    f"rank {place.rank} is one of {place.world_size} processes, {place.local_world_size} on "
                    f"its node, but rank 0 is one of {own.world_size}, {own.local_world_size} on its node: "
                    "start equally many processes on each node"
                )
                return self._problem
            if place.rank in self._channels:
                return f"two processes have rank {place.rank}; does another job use this folder of runs?"
            self._channels[place.rank] = channel
            for request in self._requests:
                channel.send(request)
            return ""

    def _read_to_end(self, channel: AuthenticatedChannel, rank: int) -> None:
        """Read heartbeats until the process of *rank* is gone."""
        with suppress(ChannelError):
            while channel.alive and channel.seconds_silent() < SILENCE_TIMEOUT_S:
                channel.receive(_POLL_S)
        channel.close()
        if not self._is_closed:
            self._problem = f"the process of rank {rank}, which keeps the agent of its node, has ended"


class LeaderAgents(StartedAgents):
    """Agents of one session: children of the controller and of the first processes of the other nodes."""

    def __init__(self, leaders: NodeLeaders | None, log: Path) -> None:
        """Create an empty set; *leaders* are those of the other nodes, if there are any."""
        self._leaders, self._log = leaders, log
        self._own = AgentProcesses("launcher.env", log)
        self._request: StartAgent | None = None

    def start(self, command: list[str], own: Mapping[str, str], variables: Mapping[str, str]) -> None:
        """Start an agent by *command* here with the variables *own*, and elsewhere with *variables*.

        Raises:
            LaunchError: one of the other nodes can start none.
        """
        if self._leaders and (why := self._leaders.problem()):
            raise LaunchError(why)
        if self._leaders:
            with self._log.open("a") as stream:
                stream.write("agents on other nodes print what they print by the launcher of their node\n")
        self._own.start("the agent of rank 0's node", command, own)
        if self._leaders:
            self._request = StartAgent(dict(variables))
            self._leaders.add_request(self._request)

    def failure(self) -> str | None:
        return self._own.failure() or (self._leaders.problem() if self._leaders else None)

    def stop(self) -> None:
        if self._leaders and self._request:
            self._leaders.remove_request(self._request)
            self._request = None
        self._own.stop()
