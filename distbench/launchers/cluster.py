"""Launchers whose ranks are on several nodes: a site of agents, one on each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from distbench.core.case import Device
from distbench.core.machine import Machine
from distbench.ipc.messages import CONTROLLERS, TOKEN, new_token
from distbench.launchers.agents import Agent, Gathering
from distbench.launchers.base import (
    Handle,
    Launch,
    Launcher,
    LaunchError,
    NodeLostError,
    NodesMissingError,
    Site,
    UnsupportedError,
)
from distbench.launchers.nodes import Difference, Node, Started, called, differences, shares
from distbench.launchers.preparing import Preparing
from distbench.launchers.sharing import blind, bring, root_of
from distbench.launchers.trials import AgentHandle
from distbench.system.machine import RUN_ID_VARIABLE, cache_folder, detect_machine
from distbench.system.processes import Share


class Cluster(Launcher):
    """A launcher whose ranks are on several nodes, each with an agent."""

    start_timeout: float
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[Difference]
    """What may differ between nodes."""

    @abstractmethod
    def members(self) -> Sequence[Node]:
        """Nodes, in the order in which ranks fill them."""

    @abstractmethod
    def start(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> Started:
        """Start an agent on each of *nodes*, with the variables *environment*.

        Args:
            log: What the engine and the agents print is appended to it.

        Raises:
            LaunchError: the engine refuses.
        """

    @abstractmethod
    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        """Commands that start them, for a dry run."""

    def meeting(self) -> tuple[str, int]:
        """Token of the agents, and the port at which the controller waits for them; 0: any that is free."""
        return new_token(), 0

    def machine(self, device: str) -> Machine:
        nodes = self.members()
        here, gpus = detect_machine(device), self.gpus_of_a_node()
        if gpus is not None:
            wanted: Device = "cuda" if device == "cuda" or (device == "auto" and gpus) else "cpu"
            here = replace(here, device=wanted)
        slots = 0 if here.device == "cuda" and gpus == 0 else sum(node.takes(here.device) for node in nodes)
        return replace(here, devices=slots, nodes=len(nodes))

    def gpus_of_a_node(self) -> int | None:
        """GPUs that ranks have on each node, where this machine does not tell; None: it stands for all."""
        return None

    def nodes(self, processes: int, device: Device) -> int:
        return len(shares(self.members(), processes, device))

    def problem(self, processes: int, machine: Machine) -> str | None:
        nodes = self.members()
        counts = [node.takes(machine.device) for node in nodes]
        if processes <= (slots := sum(counts)):
            return None
        listed = ", ".join(f"{name}: {count}" for name, count in zip(called(nodes), counts, strict=True))
        return f"{processes} ranks need as many slots, these nodes have {slots} ({listed})"

    def commands(self, launch: Launch) -> list[list[str]]:
        worker = [launch.place.python, "-m", "distbench.worker", launch.entry, str(launch.file)]
        ranks = [
            ["env", *(f"{name}={value}" for name, value in sorted(_placed(share, i).items())), *worker]
            for share in shares(self.members(), launch.processes, launch.device)
            for i in range(share.count)
        ]
        return [*self.agent_commands(self.members()), *ranks]

    def open(self, run_id: str) -> Site:
        return AgentSite(self, run_id)


def _placed(share: Share, local_rank: int) -> dict[str, str]:
    return {name: v for name, v in share.variables(local_rank, 0).items() if not name.startswith("MASTER_")}


class AgentSite(Site):
    """Keeps the agents of a run from its first trial to its end."""

    is_here = False

    def __init__(self, cluster: Cluster, run_id: str) -> None:
        self._cluster, self._run_id = cluster, run_id
        self._agents: list[Agent] = []
        self._machine: Mapping[str, Any] | None = None
        self._started: Started | None = None

    def launch(self, launch: Launch) -> Handle:
        try:
            return self._launched(launch)
        except UnsupportedError:
            raise
        except (LaunchError, OSError):
            # what one of them has begun must not go on without the others
            self._end()
            raise

    @property
    def machine(self) -> Mapping[str, Any] | None:
        return self._machine

    def renew(self) -> None:
        with suppress(LaunchError):
            for agent in self._agents:
                agent.send({"renew": True})
            for agent in self._agents:
                agent.answer("renewed")

    def close(self) -> None:
        for agent in self._agents:
            agent.send({"over": True})
        self._end()

    def _launched(self, launch: Launch) -> Handle:
        if not self._agents:
            self._agents = self._gathered(launch)
            self._compare()
            self._count(launch)
            self._machine = self._agents[0].machine
            self._look(launch)
        is_one_copied = self._agents[0].is_apart or any(agent.has_own_cache for agent in self._agents)
        if launch.on_each_cache and is_one_copied:
            return self._preparing(launch)
        own = shares(self._cluster.members(), launch.processes, launch.device)
        placed = list(zip(self._agents, own, strict=False))
        apart = [agent for agent, _ in placed if agent.is_apart]
        if apart and launch.reads_of_others and len(placed) > 1:
            raise UnsupportedError(
                f"its ranks read each other's files, and {_names(apart)} can't see {root_of(launch)}: "
                "it needs a file system that all nodes share, or all of its ranks on one node"
            )
        bring(launch, apart)
        port = 0
        for agent, share in placed:
            at = replace(share, address=placed[0][0].address, port=port)
            _ask(agent, launch, at, copies=agent.is_apart)
            if share.has_rank_0:
                # the others are told where they meet
                port = _begun(agent, self._cluster.start_timeout)
        for agent, _ in placed[1:]:
            _begun(agent, self._cluster.start_timeout)
        return AgentHandle(placed, self._end, launch.file.parent)

    def _look(self, launch: Launch) -> None:
        """See what the nodes share with this host."""
        for agent in blind(self._agents, root_of(launch)):
            agent.is_apart = True
        for agent in blind(self._agents, cache_folder()):
            agent.has_own_cache = True

    def _preparing(self, launch: Launch) -> Handle:
        """The preparation on each node with a cache of its own; on the first, weights are made for all."""
        first, *others = self._agents
        builders = [first, *(agent for agent in others if agent.has_own_cache)]
        bring(launch, builders)
        placed = [(agent, Share(1, 1, address=agent.address)) for agent in builders]
        for agent, share in placed:
            node = "" if agent is first else agent.name
            _ask(agent, launch, share, copies=True, node=node)
        for agent, _ in placed:
            _begun(agent, self._cluster.start_timeout)
        return Preparing(placed, self._end, launch.file)

    def _gathered(self, launch: Launch) -> list[Agent]:
        nodes, (token, port) = self._cluster.members(), self._cluster.meeting()
        gathering = Gathering(token, port)
        environment = {
            TOKEN: token,
            CONTROLLERS: gathering.addresses,
            RUN_ID_VARIABLE: self._run_id,
        }
        log = launch.file.parent / "agents.log"
        try:
            self._started = self._cluster.start(nodes, environment, log)
            agents = gathering.gather(nodes, self._started, launch, self._cluster.start_timeout)
        except LaunchError as error:
            if launch.given_up():
                raise
            tail = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
            raise NodesMissingError(f"{error}; {log} ends with:\n{tail}") from error
        finally:
            gathering.close()
        for agent in agents:
            agent.log = log
        return agents

    def _compare(self) -> None:
        """See that the nodes are alike.

        Raises:
            LaunchError: they are not, and that was not allowed.
        """
        allowed = self._cluster.may_differ
        if apart := differences({agent.name: agent.facts for agent in self._agents}, allowed):
            remedy = f"make the nodes alike, or allow it with may_differ: [{', '.join(apart)}]"
            raise NodesMissingError("; ".join([*apart.values(), remedy]))

    def _count(self, launch: Launch) -> None:
        """See that each node has the GPUs that were counted on before it could be asked.

        Raises:
            NodesMissingError: one has not.
        """
        for agent, node in zip(self._agents, self._cluster.members(), strict=True):
            wanted, shown = node.takes(launch.device), agent.facts["visible_gpus"]
            if launch.device == "cuda" and shown < wanted:
                raise NodesMissingError(
                    f"{agent.name} takes {wanted} ranks by launcher, and {shown} GPUs are visible there; "
                    "give it fewer ranks, check its driver and CUDA_VISIBLE_DEVICES, or use device: cpu"
                )

    def _end(self) -> None:
        for agent in self._agents:
            agent.close()
        self._agents = []
        if self._started:
            self._started.stop()
            self._started = None


def _ask(agent: Agent, launch: Launch, share: Share, *, copies: bool, node: str = "") -> None:
    """Ask *agent* to launch its *share*, and take from it what comes of that.

    Args:
        copies: It is launched in the agent's copy of the run's folder.
        node: Its node, if another one does the same: what it writes comes back under a name with this, and
            what it leaves for other launches stays there.
    """
    left = [file.relative_to(root_of(launch)).as_posix() for file in launch.leaves] if not node else []
    folder = PurePosixPath(launch.file.parent.relative_to(root_of(launch)))
    agent.expect(folder, range(share.first, share.first + share.count), left)
    request = {
        "entry": launch.entry,
        "file": str(launch.file),
        "share": asdict(share),
        "environment": {**launch.environment, **launch.place.environment},
        "imports": list(launch.imports),
        "leftovers": list(launch.leftovers),
        "folder": launch.place.folder or str(Path.cwd()),
        "is_sampled": launch.is_sampled,
        "start_s": launch.start_s,
        "leaves": left if copies else None,
        "node": node,
    }
    agent.send({"launch": request})


def _names(agents: Sequence[Agent]) -> str:
    return ", ".join(agent.name for agent in agents)


def _begun(agent: Agent, seconds: float) -> int:
    """Port that *agent*'s ranks have for the rendezvous, once they are started."""
    try:
        told = agent.answer("port", "failed", seconds=seconds)
    except NodeLostError:
        raise
    except LaunchError as error:
        raise LaunchError(
            f"{agent.name} has not started its ranks within {seconds:g} s; its imports may take long: raise "
            "start_timeout"
        ) from error
    if "failed" in told:
        raise LaunchError(f"{agent.name}: {told['failed']}")
    return int(told["port"])
