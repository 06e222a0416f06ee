"""Base class of launchers for several nodes, with one agent on each."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from distbench.core.case import Device
from distbench.core.machine import Machine
from distbench.ipc.channels import CONTROLLERS_VARIABLE, TOKEN_VARIABLE, new_token
from distbench.ipc.launch_spec import LaunchSpec, RankRange
from distbench.ipc.messages import (
    EndRun,
    ForkServersStopped,
    LaunchPrepared,
    LaunchStarted,
    Message,
    PrepareLaunch,
    RestartForkServers,
    StartRanks,
)
from distbench.launchers.agents import (
    AgentConnection,
    AgentListener,
    AgentTimeoutError,
    agents_without_access,
    send_inputs,
)
from distbench.launchers.base import (
    CancelCheck,
    Launcher,
    LaunchError,
    LaunchSession,
    LaunchUnsupportedError,
    NodesUnavailableError,
    RunningLaunch,
    never_cancelled,
)
from distbench.launchers.cluster_launch import ClusterBuild, ClusterLaunch
from distbench.launchers.nodes import (
    Node,
    NodeDifference,
    StartedAgents,
    assign_ranks,
    interface_problem,
    node_differences,
    node_labels,
)
from distbench.system.cache import cache_folder
from distbench.system.machine import RUN_ID_VARIABLE, detect_machine

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+", re.MULTILINE)

M = TypeVar("M", bound=Message)


class ClusterLauncher(Launcher):
    """A launcher whose ranks are on several nodes, each with an agent."""

    start_timeout: float
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference]
    """Facts that may differ between nodes."""

    @abstractmethod
    def node_list(self) -> Sequence[Node]:
        """Nodes, in the order in which ranks fill them."""

    @abstractmethod
    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        """Start an agent on each of *nodes*, with the variables *environment*.

        Args:
            log: File to which the output of the engine and the agents is appended.

        Raises:
            LaunchError: the engine refuses.
        """

    @abstractmethod
    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        """Commands that start the agents, for a dry run."""

    def token_and_port(self) -> tuple[str, int]:
        """Token of the agents, and port of the controller; 0: any that is free."""
        return new_token(), 0

    def machine(self, device: str) -> Machine:
        nodes = self.node_list()
        gpus = self.gpus_per_node()
        if gpus is not None and device == "auto":
            device = "cuda" if gpus else "cpu"
        here = detect_machine(device)
        slots = (
            0 if here.device == "cuda" and gpus == 0 else sum(node.slots_on(here.device) for node in nodes)
        )
        return replace(here, devices=slots, nodes=len(nodes))

    def gpus_per_node(self) -> int | None:
        """GPUs for ranks on each node, if this machine is different; None: nodes are like this machine."""
        return None

    def node_count(self, processes: int, device: Device) -> int:
        return len(assign_ranks(self.node_list(), processes, device))

    def problem(self, processes: int, machine: Machine) -> str | None:
        nodes = self.node_list()
        counts = [node.slots_on(machine.device) for node in nodes]
        if processes <= (slots := sum(counts)):
            return None
        listed = ", ".join(f"{name}: {count}" for name, count in zip(node_labels(nodes), counts, strict=True))
        return f"{processes} ranks need {processes} slots, but the nodes have {slots} ({listed})"

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        ranks = [
            [
                "env",
                *(f"{name}={value}" for name, value in sorted(_placement_variables(share, i).items())),
                *spec.worker_command(),
            ]
            for share in assign_ranks(self.node_list(), spec.processes, spec.device)
            for i in range(share.count)
        ]
        return [*self.agent_commands(self.node_list()), *ranks]

    def open_session(self, run_id: str) -> LaunchSession:
        return ClusterSession(self, run_id)


def _placement_variables(ranks: RankRange, local_rank: int) -> dict[str, str]:
    return {name: v for name, v in ranks.environment(local_rank, 0).items() if not name.startswith("MASTER_")}


class ClusterSession(LaunchSession):
    """Keeps the agents of a run from its first trial to its end."""

    is_local = False

    def __init__(self, cluster: ClusterLauncher, run_id: str) -> None:
        self._cluster, self._run_id = cluster, run_id
        self._agents: list[AgentConnection] = []
        self._launches = 0
        self._machine: Mapping[str, Any] | None = None
        self._started: StartedAgents | None = None

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        self._launches += 1
        try:
            return self._launch(spec, is_cancelled)
        except LaunchUnsupportedError:
            raise
        except (LaunchError, OSError):
            # processes that one of them has started must not go on without the others
            self._close_agents()
            raise

    @property
    def machine(self) -> Mapping[str, Any] | None:
        return self._machine

    def restart_fork_servers(self) -> None:
        with suppress(LaunchError):
            for agent in self._agents:
                agent.send(RestartForkServers())
            for agent in self._agents:
                agent.wait_for(ForkServersStopped)

    def close(self) -> None:
        for agent in self._agents:
            agent.send(EndRun())
        self._close_agents()

    def _launch(self, spec: LaunchSpec, is_cancelled: CancelCheck) -> RunningLaunch:
        if not self._agents:
            self._agents = self._connect_agents(spec, is_cancelled)
            self._check_alike()
            self._check_gpu_counts(spec)
            self._check_interfaces(spec)
            self._machine = self._agents[0].node.machine
            self._probe_shared_folders(spec)
        is_one_copied = self._agents[0].lacks_run_folder or any(agent.has_own_cache for agent in self._agents)
        if spec.once_per_cache and is_one_copied:
            return self._launch_builds(spec, is_cancelled)
        own = assign_ranks(self._cluster.node_list(), spec.processes, spec.device)
        placed = list(zip(self._agents, own, strict=False))
        separate = [agent for agent, _ in placed if agent.lacks_run_folder]
        if separate and spec.needs_shared_files and len(placed) > 1:
            raise LaunchUnsupportedError(
                "this job needs a shared file system, because its ranks read each other's files, and "
                f"{_agent_names(separate)} can't see {spec.base_folder}. Use a file system that all nodes "
                "share, or one node"
            )
        send_inputs(spec, separate, is_cancelled)
        address = placed[0][0].node.address
        for agent, ranks in placed:
            own_ranks = replace(ranks, master_address=address)
            own_spec = spec.with_ranks(own_ranks)
            _prepare_launch(agent, PrepareLaunch(own_spec, self._launches, agent.lacks_run_folder))
        self._start_ranks([agent for agent, _ in placed])
        return ClusterLaunch(placed, self._close_agents, spec, self._launches)

    def _start_ranks(self, agents: Sequence[AgentConnection]) -> None:
        """Start the ranks of *agents* once all of them are prepared; the first has rank 0.

        A node that imports for long would otherwise use up the time in which the others wait for its ranks.
        """
        for agent in agents:
            self._wait_for(LaunchPrepared, agent)
        port = 0
        for agent in agents:
            agent.send(StartRanks(port))
            # the first reports the port of the rendezvous, which the others need
            port = port or self._wait_for(LaunchStarted, agent).port
        for agent in agents[1:]:
            self._wait_for(LaunchStarted, agent)

    def _wait_for(self, kind: type[M], agent: AgentConnection) -> M:
        """Wait for the answer of *agent* about a launch.

        Raises:
            LaunchError: it reports a failure, does not answer in time, or is lost.
        """
        seconds = self._cluster.start_timeout
        try:
            return agent.wait_for(kind, seconds=seconds, may_fail=True)
        except AgentTimeoutError as error:
            raise LaunchError(
                f"{agent.name} did not start its ranks within {seconds:g} s. If imports are slow, raise "
                "start_timeout"
            ) from error

    def _probe_shared_folders(self, spec: LaunchSpec) -> None:
        """Find out which folders the nodes share with this host."""
        for agent in agents_without_access(self._agents, spec.base_folder):
            agent.lacks_run_folder = True
        for agent in agents_without_access(self._agents, cache_folder()):
            agent.has_own_cache = True

    def _launch_builds(self, spec: LaunchSpec, is_cancelled: CancelCheck) -> RunningLaunch:
        """Launch the preparation on each node with its own cache; the first makes the weights for all."""
        first, *others = self._agents
        builders = [first, *(agent for agent in others if agent.has_own_cache)]
        send_inputs(spec, builders, is_cancelled)
        placed = [(agent, RankRange(1, 1, master_address=agent.node.address)) for agent in builders]
        for agent, ranks in placed:
            own = spec.with_ranks(ranks)
            request = PrepareLaunch(own, self._launches, in_mirror=True)
            if agent is not first:
                request = replace(request, spec=replace(own, output_files=()), file_label=agent.name)
            _prepare_launch(agent, request)
        for agent, _ in placed:
            self._wait_for(LaunchPrepared, agent)
            agent.send(StartRanks(0))
        for agent, _ in placed:
            self._wait_for(LaunchStarted, agent)
        return ClusterBuild(placed, self._close_agents, spec, self._launches)

    def _connect_agents(self, spec: LaunchSpec, is_cancelled: CancelCheck) -> list[AgentConnection]:
        nodes, log = self._cluster.node_list(), spec.folder / "agents.log"
        try:
            agents = self._start_agents(nodes, log, is_cancelled)
        except LaunchError as error:
            if is_cancelled():
                raise
            text = log.read_text(errors="replace") if log.is_file() else ""
            # the line after the frames says what was wrong, and the log has the rest
            tail = _TRACEBACK.sub("", text)[-2000:]
            ending = f"; {log} ends with:\n{tail}" if tail else ""
            raise NodesUnavailableError(f"{error}{ending}") from error
        for agent in agents:
            agent.log = log
        return agents

    def _start_agents(
        self, nodes: Sequence[Node], log: Path, is_cancelled: CancelCheck
    ) -> list[AgentConnection]:
        token, port = self._cluster.token_and_port()
        with closing(AgentListener(token, port)) as listener:
            environment = {
                TOKEN_VARIABLE: token,
                CONTROLLERS_VARIABLE: listener.addresses,
                RUN_ID_VARIABLE: self._run_id,
            }
            self._started = self._cluster.start_agents(nodes, environment, log)
            return listener.accept_all(nodes, self._started, self._cluster.start_timeout, is_cancelled)

    def _check_alike(self) -> None:
        """Check that the nodes are alike.

        Raises:
            LaunchError: they are not, and that was not allowed.
        """
        allowed = self._cluster.may_differ
        if differences := node_differences({agent.name: agent.node.facts for agent in self._agents}, allowed):
            remedy = f"use identical nodes, or allow the difference: may_differ: [{', '.join(differences)}]"
            raise NodesUnavailableError("; ".join([*differences.values(), remedy]))

    def _check_gpu_counts(self, spec: LaunchSpec) -> None:
        """Check that each node has the GPUs that were assumed before it could be asked.

        Raises:
            NodesUnavailableError: one has not.
        """
        for agent, node in zip(self._agents, self._cluster.node_list(), strict=True):
            wanted, shown = node.slots_on(spec.device), agent.node.visible_gpus
            if spec.device == "cuda" and shown < wanted:
                error = f" ({agent.node.gpu_error})" if agent.node.gpu_error else ""
                raise NodesUnavailableError(
                    f"{agent.name} has {shown} visible GPUs{error}, but the launcher assigns it {wanted} "
                    "ranks; assign fewer ranks, check its driver and CUDA_VISIBLE_DEVICES, or use "
                    "device: cpu"
                )

    def _check_interfaces(self, spec: LaunchSpec) -> None:
        """Check that the ranks of *spec* can open their sockets, and reach those of other nodes.

        Raises:
            NodesUnavailableError: they can't.
        """
        if why := interface_problem([agent.node for agent in self._agents], spec.variables, spec.device):
            raise NodesUnavailableError(why)

    def _close_agents(self) -> None:
        for agent in self._agents:
            agent.close()
        self._agents = []
        if self._started:
            self._started.stop()
            self._started = None


def _prepare_launch(agent: AgentConnection, request: PrepareLaunch) -> None:
    """Have *agent* prepare the launch of *request*, and accept the files of its ranks from it."""
    spec, root = request.spec, request.spec.base_folder
    outputs = [file.relative_to(root).as_posix() for file in spec.output_files]
    agent.expect(PurePosixPath(spec.folder.relative_to(root)), spec.local_ranks.ranks, outputs)
    target = replace(spec.target, working_directory=spec.target.working_directory or str(Path.cwd()))
    agent.send(replace(request, spec=replace(spec, target=target)))


def _agent_names(agents: Sequence[AgentConnection]) -> str:
    return ", ".join(agent.name for agent in agents)
