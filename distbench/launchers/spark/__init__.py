"""``spark``: ranks on the executors of Spark, by an agent on each that a task of a barrier stage starts.

A process of its own talks to Spark (``driver``): neither the command nor an agent imports it. Barrier stages:
https://spark.apache.org/docs/latest/api/python/reference/api/pyspark.RDD.barrier.html.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from distbench.core.bounds import Bound, Count, Positive
from distbench.ipc.channels import TOKEN_VARIABLE
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.nodes import AgentProcesses, Node, NodeDifference, StartedAgents, without_token
from distbench.system.cpus import core_count
from distbench.system.machine import install_hint, is_installed, visible_gpu_count

_DRIVER = "distbench.launchers.spark.driver"


@dataclass(frozen=True)
class Spark(ClusterLauncher):
    """Executors of Spark, one on each node, each with a task of a barrier stage, whose child is the agent.

    Tasks run Python at the path of this command's (PYSPARK_PYTHON says another one).
    """

    master: str = ""
    """Master of the cluster, as for spark-submit: spark://host:7077, yarn; empty: Spark's default."""
    nnodes: Count = 1
    """Tasks of the stage, one on each node."""
    slots: Annotated[int, Bound(0)] = 0
    """Ranks that each node takes; 0: the GPUs of this one, or else its CPU cores."""
    conf: dict[str, str] = field(default_factory=dict)
    """Spark's properties: {spark.executor.cores: "8", spark.task.cpus: "8"} gives a task a whole executor."""
    start_timeout: Positive = 180.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    def option_problem(self) -> tuple[str, str] | None:
        if not is_installed("pyspark"):
            return "", f"pyspark is not installed; {install_hint('spark')}"
        if self.conf.get("spark.task.maxFailures", "1") != "1":
            return (
                "conf",
                "spark.task.maxFailures must be 1, because the agents of a retried stage belong to no run",
            )
        return None

    def node_list(self) -> Sequence[Node]:
        return [
            Node("", self.slots or visible_gpu_count() or core_count(), self.slots or core_count())
        ] * self.nnodes

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        driver = AgentProcesses("launcher.spark", log)
        (command,) = self.agent_commands(nodes)
        variables = without_token(environment)
        driver.start("the Spark driver", command, variables, stdin=f"{environment[TOKEN_VARIABLE]}\n")
        return driver

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        asked = {"master": self.master, "tasks": len(nodes), "conf": self.conf}
        return [[sys.executable, "-P", "-m", _DRIVER, json.dumps(asked)]]
