"""One launch over several agents: a trial, or a preparation in each node's own cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distbench.ipc.build_files import BuildEvent, append_event, read_items
from distbench.ipc.channels import wait_readable
from distbench.ipc.launch_spec import LaunchSpec, RankRange
from distbench.ipc.messages import (
    BuildEvents,
    DropMirror,
    LaunchFailed,
    LogsSent,
    Message,
    QueryStates,
    RankExit,
    RankProgress,
    RankStates,
    SampledRows,
    SamplerFailure,
    SendLogs,
    SignalRanks,
    StopLaunch,
)
from distbench.ipc.trial_files import progress_file, write_progress
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError, RunningLaunch
from distbench.system.processes import exit_text

_STATES_S = 2.0
_SILENCE_WARNING_S = 5.0

AgentRanks = Sequence[tuple[AgentConnection, RankRange]]
"""Agents of a launch, and the ranks that each starts."""


class ClusterLaunch(RunningLaunch):
    """A trial whose ranks are on several nodes."""

    def __init__(
        self, placed: AgentRanks, close_agents: Callable[[], None], spec: LaunchSpec, number: int
    ) -> None:
        """Watch launch *number* of a run, of *spec*, which was begun; *close_agents* ends all agents."""
        self._folder, self._number = spec.folder, number
        self._agents, self._close_agents = [agent for agent, _ in placed], close_agents
        self._sampled: dict[str, list[dict[str, Any]]] = {}
        self._failed_samplers: dict[str, list[str]] = {}
        self.ranks_by_node = {agent.name: list(own.ranks) for agent, own in placed}

    def wait(self, seconds: float) -> list[RankExit]:
        if not any(agent.has_unread for agent in self._agents):
            wait_readable(self._agents, seconds)
        exits = []
        for agent in self._agents:
            for event in self._events(agent):
                if isinstance(event, LaunchFailed):
                    raise self._close_with(LaunchError(f"{agent.name}: {event.reason}"))
                if isinstance(event, RankExit) and not self._is_own(agent, event):
                    continue
                if seen := self._handle_event(agent, event):
                    exits.append(seen)
        return exits

    def signal(self, number: int) -> None:
        for agent in self._agents:
            agent.send(SignalRanks(number))

    def process_states(self) -> Mapping[int, str]:
        states: dict[int, str] = {}
        for agent in self._agents:
            agent.send(QueryStates())
        for agent in self._agents:
            with suppress(LaunchError):
                states |= dict(agent.wait_for(RankStates, seconds=_STATES_S).states)
        return states

    def silent_node(self) -> str | None:
        for agent in self._agents:
            if (seconds := agent.seconds_silent) > _SILENCE_WARNING_S:
                reason = f"no heartbeat from the agent on {agent.name} for {seconds:.0f} s"
                return f"{reason}: the agent, the node or its link hangs"
        return None

    def fetch_logs(self) -> None:
        separate = [agent for agent in self._agents if agent.lacks_run_folder]
        for agent in separate:
            agent.send(SendLogs())
        for agent in separate:
            # a lost agent sends nothing, which is noticed elsewhere
            with suppress(LaunchError):
                agent.wait_for(LogsSent, seconds=_STATES_S)

    def stop(self) -> None:
        try:
            for agent in self._agents:
                agent.send(StopLaunch())
            for agent in self._agents:
                self._add_samples(agent.name, agent.wait_stopped())
        except LaunchError:
            self._close_agents()

    def sampler_tables(self) -> Mapping[str, list[dict[str, Any]]]:
        return {name: rows for name, rows in self._sampled.items() if name not in self._failed_samplers}

    def failed_samplers(self) -> Mapping[str, str]:
        return {name: "; ".join(reasons) for name, reasons in self._failed_samplers.items()}

    def _add_samples(self, node: str, samples: Sequence[SampledRows | SamplerFailure]) -> None:
        """Add *samples* of *node*."""
        for each in samples:
            if isinstance(each, SamplerFailure):
                self._failed_samplers.setdefault(each.metric, []).append(f"{node}: {each.reason}")
            else:
                rows = self._sampled.setdefault(each.metric, [])
                rows += [{"node": node, **row} for row in each.rows]

    def _is_own(self, agent: AgentConnection, end: RankExit) -> bool:
        """True if *end* is that of a rank of *agent* in this launch, rather than in an earlier one."""
        return end.launch == self._number and end.rank in self.ranks_by_node[agent.name]

    def _handle_event(self, agent: AgentConnection, event: Message) -> RankExit | None:
        """Handle *event* of *agent*; return it if it is the end of a rank."""
        if isinstance(event, RankProgress):
            for rank, mark in event.marks:
                if rank in self.ranks_by_node[agent.name]:
                    write_progress(progress_file(self._folder, rank), mark)
        return event if isinstance(event, RankExit) else None

    def _events(self, agent: AgentConnection) -> list[Message]:
        try:
            return agent.read_events()
        except LaunchError as error:
            raise self._close_with(error) from error

    def _close_with(self, why: LaunchError) -> LaunchError:
        """Return *why* once no rank is left: closing a connection ends the ranks on its node."""
        self.fetch_logs()
        self._close_agents()
        return why


class ClusterBuild(ClusterLaunch):
    """A preparation that has ended when it has on each node."""

    def __init__(
        self, placed: AgentRanks, close_agents: Callable[[], None], spec: LaunchSpec, number: int
    ) -> None:
        super().__init__(placed, close_agents, spec, number)
        self._building = {agent.name for agent in self._agents}
        self._journal = _MergedJournal(spec.instructions, sorted(self._building))

    def stop(self) -> None:
        super().stop()
        for agent in self._agents:
            if not agent.lacks_run_folder:
                # its builds are in the node's cache, and its ranks read the weights in the run's folder
                agent.send(DropMirror())

    def _handle_event(self, agent: AgentConnection, event: Message) -> RankExit | None:
        if isinstance(event, BuildEvents):
            for each in event.events:
                self._journal.add(agent.name, each)
        if not isinstance(event, RankExit):
            return None
        if event.code:
            raise LaunchError(f"{agent.name}: the build process {exit_text(event.code)}")
        self._building.discard(agent.name)
        return RankExit(0, 0, event.at) if not self._building else None


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
