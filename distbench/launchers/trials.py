"""Trials whose ranks are on several nodes, each with an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distbench.ipc.messages import ready
from distbench.ipc.trial_files import Sign, progress_file, write_progress
from distbench.launchers.agents import Agent
from distbench.launchers.base import Exit, Handle, LaunchError
from distbench.launchers.server import exit_of
from distbench.system.processes import Share

_STATES_S = 2.0
_SILENT_S = 5.0

Placed = Sequence[tuple[Agent, Share]]
"""Agents of a launch, and the ranks that each starts."""


class AgentHandle(Handle):
    """A trial whose ranks are on several nodes."""

    def __init__(self, placed: Placed, give_up: Callable[[], None], folder: Path) -> None:
        """Watch what was begun.

        Args:
            give_up: Ends all agents.
            folder: That of the trial.
        """
        self._folder = folder
        self._agents, self._give_up = [agent for agent, _ in placed], give_up
        self._sampled: dict[str, list[dict[str, Any]]] = {}
        self._unsampled: dict[str, list[str]] = {}
        self.nodes = {agent.name: list(range(own.first, own.first + own.count)) for agent, own in placed}

    def wait(self, seconds: float) -> list[Exit]:
        if not any(agent.has_news for agent in self._agents):
            ready(self._agents, seconds)
        exits = []
        for agent in self._agents:
            for event in self._events(agent):
                if "failed" in event:
                    raise self._lost(LaunchError(f"{agent.name}: {event['failed']}"))
                if seen := self._heard(agent, event):
                    exits.append(seen)
        return exits

    def signal(self, number: int) -> None:
        for agent in self._agents:
            agent.send({"signal": number})

    def states(self) -> Mapping[int, str]:
        told: dict[int, str] = {}
        for agent in self._agents:
            agent.send({"states": True})
        for agent in self._agents:
            with suppress(LaunchError):
                states = agent.answer("states", seconds=_STATES_S)["states"]
                told |= {int(rank): letter for rank, letter in states.items()}
        return told

    def silence(self) -> str | None:
        for agent in self._agents:
            if (seconds := agent.silent_s) > _SILENT_S:
                told = f"the agent on {agent.name} has been silent for {seconds:.0f} s"
                return f"{told}: it, its node or its link hangs"
        return None

    def fetch(self) -> None:
        apart = [agent for agent in self._agents if agent.is_apart]
        for agent in apart:
            agent.send({"tell": True})
        for agent in apart:
            # one that is gone tells nothing, which is noticed elsewhere
            with suppress(LaunchError):
                agent.answer("told", seconds=_STATES_S)

    def stop(self) -> None:
        try:
            for agent in self._agents:
                agent.send({"stop": True})
            for agent in self._agents:
                self._keep(agent.name, agent.stopped())
        except LaunchError:
            self._give_up()

    def samples(self) -> Mapping[str, list[dict[str, Any]]]:
        return {name: rows for name, rows in self._sampled.items() if name not in self._unsampled}

    def unsampled(self) -> Mapping[str, str]:
        return {name: "; ".join(reasons) for name, reasons in self._unsampled.items()}

    def _keep(self, node: str, pieces: Sequence[dict[str, Any]]) -> None:
        """Keep *pieces* of what was sampled on *node*."""
        for piece in pieces:
            if "reason" in piece:
                self._unsampled.setdefault(piece["samples"], []).append(f"{node}: {piece['reason']}")
            else:
                rows = self._sampled.setdefault(piece["samples"], [])
                rows += [{"node": node, **row} for row in piece["rows"]]

    def _heard(self, agent: Agent, event: dict[str, Any]) -> Exit | None:
        """The end of a rank that *agent* tells of, if it does."""
        own = self.nodes[agent.name]
        try:
            signs = {int(rank): Sign(**sign) for rank, sign in event.get("signs", {}).items()}
            ended = exit_of(event) if "exit" in event else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._lost(LaunchError(f"{agent.name}: a message of another form: {error!r}")) from error
        for rank, sign in signs.items():
            if rank in own:
                write_progress(progress_file(self._folder, rank), sign)
        # what it says of the ranks of others is not believed
        return ended if ended is None or ended.rank in own else None

    def _events(self, agent: Agent) -> list[dict[str, Any]]:
        try:
            return agent.events()
        except LaunchError as error:
            raise self._lost(error) from error

    def _lost(self, why: LaunchError) -> LaunchError:
        """*why*, once no rank is left: the connection that ends ends those on its node."""
        self.fetch()
        self._give_up()
        return why
