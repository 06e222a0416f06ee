"""``ray``: ranks on the nodes of a Ray cluster, by an agent on each that an actor starts.

A process of its own talks to Ray (``driver``): neither the command nor an agent imports it. The words of the
options are those of https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from distbench.core.bounds import Bound, Positive
from distbench.ipc.channels import TOKEN_VARIABLE
from distbench.launchers.base import ControllerCommand, JobQueue, Submission
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.nodes import AgentProcesses, Node, NodeDifference, StartedAgents, without_token
from distbench.launchers.ray.jobs import NODES_VARIABLE, RayQueue, job_submission
from distbench.system.machine import install_hint, is_installed

_DRIVER = "distbench.launchers.ray.driver"
_ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ray(ClusterLauncher):
    """Nodes of a Ray cluster, each with an actor of a placement group, whose child is the agent.

    The nodes share the file system with the folders of the suite, of the run and of this Python environment.
    """

    address: str = ""
    """Address of the cluster, as for ray.init; empty: RAY_ADDRESS, or the cluster of this host."""
    nnodes: Annotated[int, Bound(0)] = 0
    """Bundles, one on each node; 0: one for every node that is alive."""
    strategy: Literal["STRICT_SPREAD", "SPREAD"] = "STRICT_SPREAD"
    """Strategy of the placement group; two agents on one node are never allowed."""
    num_cpus: Annotated[int, Bound(0)] = 0
    """CPUs of a bundle, and the ranks of a node without GPUs; 0: what the smallest node has."""
    num_gpus: Annotated[int, Bound(0)] | None = None
    """GPUs of a bundle, and the ranks of a node; null: what the smallest node has."""
    resources: dict[str, float] = field(default_factory=dict)
    """Further resources of a bundle: {"accelerator_type:H100": 0.001}."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray's runtime environment of the actors, and with it of the agents: {env_vars: {...}}."""
    start_timeout: Positive = 300.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed.

    An autoscaler takes minutes to add a node.
    """
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    @classmethod
    def is_active(cls) -> bool:
        if NODES_VARIABLE in os.environ:
            # submitted by --on ray, also to a Ray that runs inside a Slurm allocation
            return True
        # inside an allocation of several nodes, Slurm is the launcher
        return "RAY_ADDRESS" in os.environ and os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1"

    def option_problem(self) -> tuple[str, str] | None:
        if not is_installed("ray"):
            return "", f"Ray is not installed; {install_hint('ray')}"
        if self._is_fully_specified:
            return None
        nodes = _query_nodes(self.address)
        if isinstance(nodes, str):
            return "address", f"no Ray cluster answers: {nodes}"
        if not nodes:
            return "", "no node of the Ray cluster is alive"
        return None

    def gpus_per_node(self) -> int | None:
        return self._bundle()["GPU"]

    def node_list(self) -> Sequence[Node]:
        bundle = self._bundle()
        return [Node("", bundle["GPU"] or bundle["CPU"], bundle["CPU"] or None)] * (
            self._wanted_nodes or len(self._alive_nodes())
        )

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        driver = AgentProcesses("launcher.ray", log)
        (command,) = self.agent_commands(nodes)
        driver.start(
            "the Ray driver", command, without_token(environment), stdin=f"{environment[TOKEN_VARIABLE]}\n"
        )
        return driver

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        bundle = {**self._bundle(), **self.resources}
        asked = {
            "address": self.address,
            "strategy": self.strategy,
            "bundles": [{name: amount for name, amount in bundle.items() if amount}] * len(nodes),
            "runtime_env": self.runtime_env,
            "timeout_s": self.start_timeout,
        }
        return [[sys.executable, "-P", "-m", _DRIVER, "agents", json.dumps(asked)]]

    def default_node_count(self) -> int:
        return self.nnodes

    def job_queue(self) -> JobQueue:
        return RayQueue()

    def submission(self, controller: ControllerCommand) -> Submission:
        return job_submission(self.address, controller)

    @property
    def _wanted_nodes(self) -> int:
        """Number of nodes that the submission or the options ask for; 0: all."""
        return int(os.environ.get(NODES_VARIABLE, "0")) or self.nnodes

    @property
    def _is_fully_specified(self) -> bool:
        """True if the options fully specify the request."""
        return bool(self._wanted_nodes) and self.num_gpus is not None and bool(self.num_cpus or self.num_gpus)

    def _bundle(self) -> dict[str, int]:
        """CPUs and GPUs of a node's bundle."""
        if self._is_fully_specified:
            return {"CPU": self.num_cpus, "GPU": self.num_gpus or 0}
        least = {name: min(int(node.get(name, 0)) for node in self._alive_nodes()) for name in ("CPU", "GPU")}
        return {
            "CPU": self.num_cpus or least["CPU"],
            "GPU": least["GPU"] if self.num_gpus is None else self.num_gpus,
        }

    def _alive_nodes(self) -> list[dict[str, float]]:
        nodes = _query_nodes(self.address)
        assert not isinstance(nodes, str), "option_problem() has refused it"
        return nodes


@functools.cache
def _query_nodes(address: str) -> list[dict[str, float]] | str:
    """Resources of each live node of the cluster at *address*, or a text why they are unknown.

    The cluster is queried once, as a plan must not change while it is made.
    """
    try:
        nodes: list[dict[str, float]] = query_cluster("nodes", address)
    except ConnectionError as error:
        return str(error)
    return nodes


def query_cluster(command: Literal["nodes", "dashboard"], address: str) -> Any:
    """Answer of the driver to *command* about the cluster at *address*.

    Raises:
        ConnectionError: the cluster does not answer; the message is the reason.
    """
    arguments = [sys.executable, "-P", "-m", _DRIVER, command, json.dumps({"address": address})]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"no answer within {_ANSWER_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConnectionError(lines[-1] if lines else f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])
