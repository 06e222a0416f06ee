"""One launch over several agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distbench.ipc.messages import wait_readable
from distbench.ipc.trial_files import ProgressMark, progress_file, write_progress
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError, RankExit, RunningLaunch
from distbench.launchers.fork_server_client import parse_exit
from distbench.system.processes import RankRange

_STATES_S = 2.0
_SILENCE_WARNING_S = 5.0

AgentRanks = Sequence[tuple[AgentConnection, RankRange]]
"""Agents of a launch, and the ranks that each starts."""


class ClusterLaunch(RunningLaunch):
    """A trial whose ranks are on several nodes."""

    def __init__(self, placed: AgentRanks, close_agents: Callable[[], None], folder: Path) -> None:
        """Watch a launch that was begun.

        Args:
            close_agents: Ends all agents.
            folder: Folder of the trial.
        """
        self._folder = folder
        self._agents, self._close_agents = [agent for agent, _ in placed], close_agents
        self._sampled: dict[str, list[dict[str, Any]]] = {}
        self._failed_samplers: dict[str, list[str]] = {}
        self.ranks_by_node = {
            agent.name: list(range(own.first, own.first + own.count)) for agent, own in placed
        }

    def wait(self, seconds: float) -> list[RankExit]:
        if not any(agent.has_unread for agent in self._agents):
            wait_readable(self._agents, seconds)
        exits = []
        for agent in self._agents:
            for event in self._events(agent):
                if "failed" in event:
                    raise self._close_with(LaunchError(f"{agent.name}: {event['failed']}"))
                if seen := self._handle_event(agent, event):
                    exits.append(seen)
        return exits

    def signal(self, number: int) -> None:
        for agent in self._agents:
            agent.send({"signal": number})

    def process_states(self) -> Mapping[int, str]:
        told: dict[int, str] = {}
        for agent in self._agents:
            agent.send({"states": True})
        for agent in self._agents:
            with suppress(LaunchError):
                states = agent.wait_for("states", seconds=_STATES_S)["states"]
                told |= {int(rank): letter for rank, letter in states.items()}
        return told

    def silent_node(self) -> str | None:
        for agent in self._agents:
            if (seconds := agent.seconds_silent) > _SILENCE_WARNING_S:
                told = f"no heartbeat from the agent on {agent.name} for {seconds:.0f} s"
                return f"{told}: the agent, the node or its link hangs"
        return None

    def fetch_logs(self) -> None:
        apart = [agent for agent in self._agents if agent.lacks_run_folder]
        for agent in apart:
            agent.send({"tell": True})
        for agent in apart:
            # a lost agent sends nothing, which is noticed elsewhere
            with suppress(LaunchError):
                agent.wait_for("told", seconds=_STATES_S)

    def stop(self) -> None:
        try:
            for agent in self._agents:
                agent.send({"stop": True})
            for agent in self._agents:
                self._add_samples(agent.name, agent.wait_stopped())
        except LaunchError:
            self._close_agents()

    def sampler_tables(self) -> Mapping[str, list[dict[str, Any]]]:
        return {name: rows for name, rows in self._sampled.items() if name not in self._failed_samplers}

    def failed_samplers(self) -> Mapping[str, str]:
        return {name: "; ".join(reasons) for name, reasons in self._failed_samplers.items()}

    def _add_samples(self, node: str, pieces: Sequence[dict[str, Any]]) -> None:
        """Add *pieces* of the rows sampled on *node*."""
        for piece in pieces:
            if "reason" in piece:
                self._failed_samplers.setdefault(piece["samples"], []).append(f"{node}: {piece['reason']}")
            else:
                rows = self._sampled.setdefault(piece["samples"], [])
                rows += [{"node": node, **row} for row in piece["rows"]]

    def _handle_event(self, agent: AgentConnection, event: dict[str, Any]) -> RankExit | None:
        """Handle *event* of *agent*; return the end of a rank if it is one."""
        own = self.ranks_by_node[agent.name]
        try:
            signs = {int(rank): ProgressMark(**sign) for rank, sign in event.get("signs", {}).items()}
            ended = parse_exit(event) if "exit" in event else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._close_with(LaunchError(f"{agent.name}: unexpected message: {error!r}")) from error
        for rank, sign in signs.items():
            if rank in own:
                write_progress(progress_file(self._folder, rank), sign)
        # messages about the ranks of other agents are ignored
        return ended if ended is None or ended.rank in own else None

    def _events(self, agent: AgentConnection) -> list[dict[str, Any]]:
        try:
            return agent.read_events()
        except LaunchError as error:
            raise self._close_with(error) from error

    def _close_with(self, why: LaunchError) -> LaunchError:
        """Return *why* once no rank is left: closing a connection ends the ranks on its node."""
        self.fetch_logs()
        self._close_agents()
        return why
