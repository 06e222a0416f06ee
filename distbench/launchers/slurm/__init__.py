"""``slurm``: ranks on the nodes of a Slurm allocation, by an agent on each that ``srun`` starts.

Slurm's own words: https://slurm.schedmd.com/srun.html, https://slurm.schedmd.com/sbatch.html (options, output
environment variables).
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from distbench.core.bounds import Bound, Positive
from distbench.core.errors import InfrastructureError
from distbench.launchers.base import ControllerCommand, JobQueue, Submission
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.nodes import AGENT_ARGUMENTS, AgentProcesses, Node, NodeDifference, StartedAgents
from distbench.launchers.slurm import script
from distbench.launchers.slurm.queue import ANSWER_TIMEOUT_S, SlurmQueue, job_seconds_left

# one step beside any other; agents end by themselves, and a failed one must not end the others
_STEP = ("--overlap", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1", "--cpu-bind=none", "--mem=0")
_AGENT = 'DISTBENCH_NODE="$SLURMD_NODENAME" exec "$0" "$@"'


@dataclass(frozen=True)
class Slurm(ClusterLauncher):
    """All nodes of the allocation that the command runs in (sbatch, salloc), or that ``--on slurm`` asks for.

    The nodes have this Python environment in the same place.
    """

    partition: str = ""
    """``--on slurm``: ``--partition`` of sbatch; empty, as for the others: Slurm's default."""
    account: str = ""
    """``--on slurm``: ``--account``."""
    qos: str = ""
    """``--on slurm``: ``--qos``."""
    gres: str = ""
    """``--on slurm``: ``--gres``, devices of each node, as in gpu:8."""
    time: int | str = ""
    """``--on slurm``: ``--time``, limit of the allocation, in minutes or as in 02:00:00."""
    constraint: str = ""
    """``--on slurm``: ``--constraint``, features that nodes must have."""
    exclusive: bool = True
    """``--on slurm``: ``--exclusive``, whole nodes: what others do on them would be measured, too."""
    requeue: bool = False
    """``--on slurm``: whether a job goes on by itself that was preempted or lost a node (``--requeue``)."""
    warning: Annotated[int, Bound(10, 3600)] = 120
    """``--on slurm``: seconds before the time limit from which on no trial is begun (``--signal``)."""
    sbatch: list[str] = field(default_factory=list)
    """``--on slurm``: further options of sbatch, as in [--reservation=maintenance, --mem=0]."""
    setup: list[str] = field(default_factory=list)
    """``--on slurm``: lines of bash before distbench is started, as in [module load cuda]."""
    container: list[str] = field(default_factory=list)
    """Command before the Python of each agent, as in [apptainer, exec, --nv, torch.sif]."""
    srun: list[str] = field(default_factory=lambda: ["srun"])
    """Command that starts the agents, with options of srun, as in [srun, --container-image=...]."""
    start_timeout: Positive = 120.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    @classmethod
    def is_active(cls) -> bool:
        # on a single node, local does the same without an agent
        return _in_allocation() and os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1"

    @classmethod
    def seconds_left(cls) -> float | None:
        job = os.environ.get("SLURM_JOB_ID", "")
        return job_seconds_left(job) if job.isdecimal() else None

    def option_problem(self) -> tuple[str, str] | None:
        if not self.srun:
            return "srun", "needs a command, such as [srun]"
        if not _in_allocation():
            return "", "not inside a Slurm allocation; use sbatch, salloc, or --on slurm"
        if not shutil.which("scontrol"):
            return "", (
                f"inside a Slurm job of {os.environ.get('SLURM_JOB_NUM_NODES', 'several')} nodes, but "
                "scontrol, which names them, is not installed here, as in most containers; start distbench "
                "outside of the container (launcher.slurm.container starts the agents inside), or measure "
                "this node alone with launcher: local"
            )
        return None

    def node_list(self) -> Sequence[Node]:
        names = _expand_node_list(os.environ["SLURM_JOB_NODELIST"])
        gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
        cores = _expand_counts(_variable("SLURM_JOB_CPUS_PER_NODE"))
        if len(cores) != len(names):
            raise InfrastructureError(
                f"SLURM_JOB_CPUS_PER_NODE describes {len(cores)} nodes, SLURM_JOB_NODELIST names {len(names)}"
            )
        counts = [int(gpus)] * len(names) if gpus.isdigit() else cores
        return [Node(*each) for each in zip(names, counts, cores, strict=True)]

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        step = AgentProcesses("launcher.slurm.srun", log)
        (command,) = self.agent_commands(nodes)
        step.start("srun", command, environment)
        return step

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        count = len(nodes)
        options = [*_STEP, f"--nodes={count}", f"--ntasks={count}"]
        return [[*self.srun, *options, "sh", "-c", _AGENT, *self.container, sys.executable, *AGENT_ARGUMENTS]]

    def job_queue(self) -> JobQueue:
        return SlurmQueue()

    def submission(self, controller: ControllerCommand) -> Submission:
        return Submission(script.SBATCH_COMMAND, script.batch_script(self, controller))


def _in_allocation() -> bool:
    return "SLURM_JOB_NODELIST" in os.environ


@functools.cache
def _expand_node_list(nodes: str) -> list[str]:
    """Expand *nodes*, as Slurm abbreviates them: ``node[1-3,7]``.

    Raises:
        InfrastructureError: Slurm does not expand them.
    """
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{shlex.join(command)}: {error}") from error
    if done.returncode or not done.stdout.split():
        why = done.stderr.strip() or "it named no node"
        message = f"{shlex.join(command)} exited with code {done.returncode}: {why}"
        raise InfrastructureError(f"{message}; try again")
    return done.stdout.split()


def _variable(name: str) -> str:
    """Value of the environment variable *name* of Slurm.

    Raises:
        InfrastructureError: it is not set.
    """
    if value := os.environ.get(name):
        return value
    raise InfrastructureError(
        f"{name} is not set; Slurm sets it in an allocation: start distbench inside one"
    )


def _expand_counts(text: str) -> list[int]:
    """Expand counts of the nodes, as Slurm abbreviates them: ``4(x2),2``."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
