"""``mpi``: ranks on the hosts of ``mpirun``, which starts an agent on each. Neither uses MPI itself.

The words of the options are those of Open MPI (https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html)
and of Hydra, the mpiexec of MPICH and Intel MPI (https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from distbench.core.bounds import Bound, Positive
from distbench.ipc.channels import CONTROLLERS_VARIABLE, TOKEN_VARIABLE
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.nodes import (
    AGENT_ARGUMENTS,
    AgentProcesses,
    Node,
    NodeDifference,
    StartedAgents,
    forwarded_environment,
)
from distbench.system.cpus import core_count
from distbench.system.machine import RUN_ID_VARIABLE, visible_gpu_count


@dataclass(frozen=True)
class Mpi(ClusterLauncher):
    """Hosts that mpirun reaches, given here, in a hostfile, or by the allocation that the command runs in."""

    hosts: list[str] = field(default_factory=list)
    """Names or addresses: [node-1, node-2]; empty: those of the hostfile, or of the
    allocation (Slurm, PBS)."""
    hostfile: str = ""
    """Hostfile of mpirun, with one host per line."""
    nnodes: Annotated[int, Bound(0)] = 0
    """Hosts to use; 0: all."""
    slots: Annotated[int, Bound(0)] = 0
    """Ranks per host; 0: the number of GPUs of this host, or else of its CPU cores."""
    mpirun: list[str] = field(default_factory=lambda: ["mpirun"])
    """Command that starts the agents, with its options: [mpirun, --mca, btl_tcp_if_include, eth0]."""
    implementation: Literal["openmpi", "hydra"] = "openmpi"
    """Options that it understands: those of Open MPI, or those of MPICH and Intel MPI."""
    forward: list[str] = field(default_factory=list)
    """Names of environment variables that ranks get from this command's environment; Hydra passes all."""
    start_timeout: Positive = 120.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    def option_problem(self) -> tuple[str, str] | None:
        if self.hosts and self.hostfile:
            return "hostfile", "hosts is also set; keep one of them"
        if len(set(self.hosts)) < len(self.hosts):
            return "hosts", "must list each host once, because one agent serves all ranks of a host"
        if self.hostfile and not Path(self.hostfile).is_file():
            return "hostfile", "no such file"
        if not self.mpirun:
            return "mpirun", "needs a command, such as [mpirun]"
        known = len(self.hosts) or self._allocated_hosts()
        if not known:
            return "hosts", "not inside a Slurm or PBS allocation; set hosts or hostfile"
        if self.nnodes > known:
            return "nnodes", f"there are {known} hosts"
        return None

    def node_list(self) -> Sequence[Node]:
        count = self.nnodes or len(self.hosts) or self._allocated_hosts()
        return [
            Node("", self.slots or visible_gpu_count() or core_count(), self.slots or core_count())
        ] * count

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        step = AgentProcesses("launcher.mpi.mpirun", log)
        (command,) = self.agent_commands(nodes)
        step.start(self.mpirun[0], command, environment)
        return step

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        agent, count = [sys.executable, *AGENT_ARGUMENTS], str(len(nodes))
        if self.implementation == "hydra":
            where = ["-hosts", ",".join(self.hosts)] if self.hosts else []
            where += ["-f", self.hostfile] if self.hostfile else []
            # -genvlist reaches the processes of the first host only (4.0.2)
            return [[*self.mpirun, *where, "-n", count, "-ppn", "1", "-genvall", *agent]]
        where = ["--host", ",".join(self.hosts)] if self.hosts else []
        where += ["--hostfile", self.hostfile] if self.hostfile else []
        # bound to a core, an agent would have all ranks of its host on that one
        placed = [*where, "-n", count, "--map-by", "ppr:1:node", "--bind-to", "none"]
        # names alone: a value would be visible on the command line
        names = dict.fromkeys(
            [TOKEN_VARIABLE, CONTROLLERS_VARIABLE, RUN_ID_VARIABLE, *forwarded_environment(*self.forward)]
        )
        exported = [word for name in names for word in ("-x", name)]
        return [[*self.mpirun, *placed, *exported, *agent]]

    def _allocated_hosts(self) -> int:
        """Hosts of the hostfile, or of the allocation around this process; 0: neither."""
        if self.hostfile:
            return _count_hosts(self.hostfile)
        if file := os.environ.get("PBS_NODEFILE"):
            return _count_hosts(file)
        return int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))


def _count_hosts(file: str) -> int:
    """Count the hosts in *file*, which lists each on a line of its own, or once for each of its slots."""
    lines = [line.partition("#")[0].split() for line in Path(file).read_text().splitlines()]
    return len({words[0].partition(":")[0] for words in lines if words})
