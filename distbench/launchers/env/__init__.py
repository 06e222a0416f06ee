"""``env``: nodes on which another launcher (torchrun, mpirun, srun, ...) has started this command.

Rank 0 is the controller. The first process of each other node keeps the agent of its node; all others end at
once, as the agents fork the ranks of every trial.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from distbench.core.bounds import Bound, Positive
from distbench.core.errors import InfrastructureError
from distbench.ipc.channels import CONTROLLERS_VARIABLE, TOKEN_VARIABLE, host_and_port, new_token
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.env.address import AddressFile, ControllerAddress
from distbench.launchers.env.controller import LeaderAgents, NodeLeaders
from distbench.launchers.env.leader import join_controller
from distbench.launchers.nodes import AGENT_ARGUMENTS, FOLLOW_PARENT, Node, NodeDifference, StartedAgents
from distbench.system.files import infrastructure_errors
from distbench.system.rank_variables import JobPlacement, read_placement

_controlled: list[NodeLeaders | None] = []
"""While this process is the controller of its job: its connections to other nodes; None: there are none."""


@dataclass(frozen=True)
class Env(ClusterLauncher):
    """Nodes on which torchrun, mpirun, srun or the like has started this command, a process for each rank.

    Rank 0 runs the suite. The others find it by a file in the folder of runs (--out), which all nodes share,
    or by DISTBENCH_TOKEN.
    """

    joins_started_ranks: ClassVar[bool] = True

    slots: Annotated[int, Bound(0)] = 0
    """Ranks per node; 0: the number of processes that were started there."""
    address: str = ""
    """With DISTBENCH_TOKEN: name or address of the node of rank 0; empty: MASTER_ADDR."""
    port: Annotated[int, Bound(1, 65_535)] = 17_018
    """With DISTBENCH_TOKEN: port of rank 0, to which the other nodes connect."""
    start_timeout: Positive = 120.0
    """Seconds until all nodes have joined and agents have connected, and for the import of torch and
    deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    def option_problem(self) -> tuple[str, str] | None:
        try:
            own = read_placement(os.environ)
        except ValueError as error:
            return "", str(error)
        ranks, cores, all_cores = self._slots(own), len(os.sched_getaffinity(0)), os.cpu_count() or 1
        if cores < min(ranks, all_cores):
            return "", (
                f"this process is bound to {cores} of {all_cores} CPU cores, which the {ranks} ranks of its "
                "node would share; start it with mpirun --bind-to none, or srun --cpu-bind=none"
            )
        if own.node_count > 1 and TOKEN_VARIABLE in os.environ and not self._controller_host:
            return "address", f"{TOKEN_VARIABLE} is set, but not MASTER_ADDR; set one of both"
        return None

    def start_hint(self) -> str | None:
        if _controlled:
            return None
        return "works with distbench run, collectives, doctor, gate and calibrate only"

    def node_list(self) -> Sequence[Node]:
        own = read_placement(os.environ)
        return [Node("", self._slots(own))] * own.node_count

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        leaders = _controlled[-1]
        own, port = dict(environment), environment[CONTROLLERS_VARIABLE].rpartition(":")[2]
        if leaders is None:
            own[CONTROLLERS_VARIABLE] = f"127.0.0.1:{port}"
        elif known := leaders.own_address():
            # other nodes reach the ranks here at the address by which their agent reaches the controller
            own[CONTROLLERS_VARIABLE] = host_and_port(known, port)
        agents = LeaderAgents(leaders, log)
        agents.start(self.agent_commands(nodes)[0], own, environment)
        return agents

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        return [[sys.executable, *AGENT_ARGUMENTS, FOLLOW_PARENT]] * len(nodes)

    @contextmanager
    def join(self, out: Path) -> Iterator[int | None]:
        own = read_placement(os.environ)
        if own.rank == 0:
            with self._control(own, out):
                yield None
            return
        if own.local_rank == 0:
            self._serve_controller(own, out)
        yield 0

    @contextmanager
    def _control(self, own: JobPlacement, out: Path) -> Iterator[None]:
        """Be the controller while the body runs.

        Raises:
            InfrastructureError: the port is taken, or the folder *out* can't be written.
        """
        leaders, file = None, AddressFile(out, own.job)
        token = os.environ.get(TOKEN_VARIABLE, "")
        if own.node_count > 1:
            try:
                leaders = NodeLeaders(own, token or new_token(), self.port if token else 0)
            except OSError as error:
                reason = f"can't listen for other nodes on port {self.port}: {error.strerror}"
                raise InfrastructureError(reason, "set launcher.env.port") from error
        if leaders and not token:
            with infrastructure_errors(file.path):
                file.write(leaders.address())
        _controlled.append(leaders)
        try:
            yield
        finally:
            _controlled.pop()
            if leaders:
                # late ones still look for the file
                leaders.close()
                file.remove()

    def _serve_controller(self, own: JobPlacement, out: Path) -> None:
        """Keep the agents of this node until the run has ended.

        Raises:
            InfrastructureError: the controller does not answer, or is gone.
        """
        if token := os.environ.get(TOKEN_VARIABLE):
            address = host_and_port(self._controller_host, self.port)
            fixed = ControllerAddress([address], token)
            join_controller(own, lambda: fixed, self.start_timeout, f"at {address}").serve()
            return
        file = AddressFile(out, own.job)
        where = f"by {file.path}; use a folder (--out) that all nodes share, or set {TOKEN_VARIABLE}"
        join_controller(own, file.read, self.start_timeout, where).serve()

    def _slots(self, own: JobPlacement) -> int:
        return self.slots or own.local_world_size

    @property
    def _controller_host(self) -> str:
        return self.address or os.environ.get("MASTER_ADDR", "")
