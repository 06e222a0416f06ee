"""One build over several nodes, each in its own copy of the run's folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distbench.ipc.build_files import BuildEvent, append_event, read_items
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError, RankExit
from distbench.launchers.trials import AgentRanks, ClusterLaunch
from distbench.system.processes import exit_text


class ClusterBuild(ClusterLaunch):
    """A preparation that has ended when it has on each node."""

    def __init__(self, placed: AgentRanks, close_agents: Callable[[], None], instructions: Path) -> None:
        super().__init__(placed, close_agents, instructions.parent)
        self._building = {agent.name for agent in self._agents}
        self._journal = _MergedJournal(instructions, sorted(self._building))

    def stop(self) -> None:
        super().stop()
        for agent in self._agents:
            if not agent.lacks_run_folder:
                # its builds are in the node's cache, and its ranks read the weights in the run's folder
                agent.send({"forget": True})

    def _handle_event(self, agent: AgentConnection, event: dict[str, Any]) -> RankExit | None:
        for told in event.get("journal", []):
            self._journal.add(agent.name, BuildEvent(**told))
        if "exit" not in event:
            return None
        if event["code"]:
            raise LaunchError(f"{agent.name}: the build process {exit_text(event['code'])}")
        self._building.discard(agent.name)
        return RankExit(0, 0, event["at"]) if not self._building else None


class _MergedJournal:
    """The journals of all nodes as one: an item has ended when it has on each of them."""

    def __init__(self, file: Path, nodes: Sequence[str]) -> None:
        self._file, self._nodes = file, nodes
        self._left = [item.name for item in read_items(file)]
        self._ended: dict[str, dict[str, BuildEvent]] = defaultdict(dict)
        self._note_begin()

    def add(self, node: str, event: BuildEvent) -> None:
        """Add *event*, which was written on *node*."""
        if event.ended:
            self._ended[event.item][node] = event
        while self._left and len(ended := self._ended[self._left[0]]) == len(self._nodes):
            append_event(self._file, self._merged_event(self._left.pop(0), ended))
            self._note_begin()

    def _note_begin(self) -> None:
        if self._left:
            append_event(self._file, BuildEvent(self._left[0]))

    def _merged_event(self, item: str, ended: dict[str, BuildEvent]) -> BuildEvent:
        failed = [f"{node}: {ended[node].failed}" for node in self._nodes if ended[node].failed]
        notes = dict.fromkeys(note for node in self._nodes for note in ended[node].notes)
        return BuildEvent(item, ended=True, failed="; ".join(failed), notes=list(notes))
