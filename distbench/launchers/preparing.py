"""A preparation on several nodes: each builds the items in its own copy of the run's folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distbench.ipc.build_files import Event, note_event, read_items
from distbench.launchers.agents import Agent
from distbench.launchers.base import Exit, LaunchError
from distbench.launchers.trials import AgentHandle, Placed
from distbench.system.processes import ending


class Preparing(AgentHandle):
    """A preparation that has ended when it has on each node."""

    def __init__(self, placed: Placed, give_up: Callable[[], None], file: Path) -> None:
        super().__init__(placed, give_up, file.parent)
        self._building = {agent.name for agent in self._agents}
        self._journal = _Journal(file, sorted(self._building))

    def stop(self) -> None:
        super().stop()
        for agent in self._agents:
            if not agent.is_apart:
                # what it has built there is in its cache, and its ranks read the weights in the run's folder
                agent.send({"forget": True})

    def _heard(self, agent: Agent, event: dict[str, Any]) -> Exit | None:
        for told in event.get("journal", []):
            self._journal.heard(agent.name, Event(**told))
        if "exit" not in event:
            return None
        if event["code"]:
            raise LaunchError(f"{agent.name}: the process that builds it {ending(event['code'])}")
        self._building.discard(agent.name)
        return Exit(0, 0, event["at"]) if not self._building else None


class _Journal:
    """The journals of all nodes as one: an item has ended when it has on each of them."""

    def __init__(self, file: Path, nodes: Sequence[str]) -> None:
        self._file, self._nodes = file, nodes
        self._left = [item.name for item in read_items(file)]
        self._ended: dict[str, dict[str, Event]] = defaultdict(dict)
        self._begin()

    def heard(self, node: str, event: Event) -> None:
        """*event* was written on *node*."""
        if event.ended:
            self._ended[event.item][node] = event
        while self._left and len(ended := self._ended[self._left[0]]) == len(self._nodes):
            note_event(self._file, self._together(self._left.pop(0), ended))
            self._begin()

    def _begin(self) -> None:
        if self._left:
            note_event(self._file, Event(self._left[0]))

    def _together(self, item: str, ended: dict[str, Event]) -> Event:
        failed = [f"{node}: {ended[node].failed}" for node in self._nodes if ended[node].failed]
        notes = dict.fromkeys(note for node in self._nodes for note in ended[node].notes)
        return Event(item, ended=True, failed="; ".join(failed), notes=list(notes))
