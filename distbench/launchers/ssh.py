"""``ssh``: ranks on a list of hosts, by an agent on each that a remote shell starts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distbench.core.bounds import Positive
from distbench.ipc.channels import NODE_VARIABLE, TOKEN_VARIABLE
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.nodes import (
    AGENT_ARGUMENTS,
    FOLLOW_PARENT,
    AgentProcesses,
    Node,
    NodeDifference,
    StartedAgents,
    forwarded_environment,
    without_token,
)


@dataclass(frozen=True)
class Ssh(ClusterLauncher):
    """Hosts that ssh reaches without a password, with this Python environment in the same place."""

    hosts: list[str] = field(default_factory=list)
    """Names or addresses, each with the number of ranks that it takes: [node-1:8, node-2:8]."""
    shell: list[str] = field(default_factory=lambda: ["ssh", "-o", "BatchMode=yes"])
    """Command that takes a host and a command line to run there."""
    forward: list[str] = field(default_factory=list)
    """Names of environment variables that ranks get from this command's environment."""
    start_timeout: Positive = 120.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    def node_list(self) -> Sequence[Node]:
        return [_parse_host(host) for host in self.hosts]

    def option_problem(self) -> tuple[str, str] | None:
        nodes = self.node_list()
        if (
            not nodes
            or not all(node.slots for node in nodes)
            or len({node.name for node in nodes}) < len(nodes)
        ):
            return "hosts", "must list each host once, with at least one rank: [node-1:8, node-2:8]"
        if not self.shell:
            return "shell", "needs a command that takes a host and a command line, such as [ssh]"
        return None

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        token, variables = environment[TOKEN_VARIABLE], without_token(environment)
        shells = AgentProcesses("launcher.ssh.shell", log)
        for node, command in zip(nodes, self._commands(nodes, variables), strict=True):
            shells.start(f"the remote shell of {node.name}", command, stdin=f"{token}\n")
        return shells

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        return self._commands(nodes, {})

    def _commands(self, nodes: Sequence[Node], environment: Mapping[str, str]) -> list[list[str]]:
        passed = {**forwarded_environment(*self.forward), **environment}
        return [
            [*self.shell, node.name, _remote_command({**passed, NODE_VARIABLE: node.name})] for node in nodes
        ]


def _parse_host(host: str) -> Node:
    name, _, slots = host.rpartition(":")
    return Node(name, int(slots)) if name and slots.isdigit() else Node(host, 1)


def _remote_command(environment: Mapping[str, str]) -> str:
    """Command line that becomes an agent with *environment*; its token comes by the standard input."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    # the agent ends with the connection, also while it is stopped and can't see that this has ended
    return f"exec {shlex.join(['env', *variables, sys.executable, *AGENT_ARGUMENTS, FOLLOW_PARENT])}"
