"""Cluster nodes: rank assignment, agent processes, required similarity."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from distbench.core.case import Device
from distbench.ipc.channels import CONTROLLERS_VARIABLE, TOKEN_VARIABLE
from distbench.ipc.launch_spec import WORKER_ARGUMENTS, RankRange
from distbench.ipc.messages import NodeFacts
from distbench.launchers.base import LaunchError
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.network_interfaces import (
    InterfaceError,
    NodeSockets,
    selected_interfaces,
    shared_address_text,
)

AGENT_ARGUMENTS = (*WORKER_ARGUMENTS, "agent")
"""Arguments of the Python that runs an agent."""
FOLLOW_PARENT = "0"
"""Additional argument: the agent ends with the process that started it, however that ends."""

# variables that distbench and Python read on the way to the suite
_FORWARDED_VARIABLES = (
    "DISTBENCH_CACHE",
    "DISTBENCH_PLUGINS",
    "PYTHONPATH",
    CONTROLLERS_VARIABLE,
    RUN_ID_VARIABLE,
)
_STOP_S = 5.0


@dataclass(frozen=True)
class Node:
    """A node of a cluster."""

    name: str
    """Empty: the engine chooses it, and its agent reports its name."""
    slots: int
    """Ranks that it takes: its GPUs, or the CPU cores that ranks may use."""
    cores: int | None = None
    """Ranks that it takes if they compute on its CPUs; None: as many."""

    def slots_on(self, device: Device) -> int:
        """Ranks that it takes if they compute on *device*."""
        return self.slots if device == "cuda" or self.cores is None else self.cores


def node_labels(nodes: Sequence[Node]) -> list[str]:
    """Names of *nodes* for messages: a node that the engine has yet to choose has only a number."""
    return [node.name or f"node {number}" for number, node in enumerate(nodes)]


def forwarded_environment(*names: str) -> dict[str, str]:
    """Variables of this process for agents whose engine passes no environment on, with *names*."""
    return {name: os.environ[name] for name in (*_FORWARDED_VARIABLES, *names) if name in os.environ}


def without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove the token from *environment* of agents, since it goes another way."""
    return {name: value for name, value in environment.items() if name != TOKEN_VARIABLE}


def assign_ranks(nodes: Sequence[Node], processes: int, device: Device) -> list[RankRange]:
    """Assign *processes* ranks on *device* to nodes: each takes as many as it can."""
    counts: list[int] = []
    for node in nodes:
        if left := processes - sum(counts):
            counts.append(min(node.slots_on(device), left))
    return [
        RankRange(processes, count, sum(counts[:number]), number, len(counts))
        for number, count in enumerate(counts)
    ]


class StartedAgents(Protocol):
    """Agents that an engine has started."""

    def failure(self) -> str | None:
        """Reason why not all of them will connect; None if they may."""

    def stop(self) -> None:
        """Stop those that are left, and wait until the engine has done so."""


class AgentProcesses(StartedAgents):
    """Processes of this host that start agents; each ends when its agents have ended."""

    def __init__(self, option: str, log: Path) -> None:
        """Create an empty set of processes.

        Args:
            option: Key of the suite that names the command.
            log: File to which their output is appended.
        """
        self._option, self._log = option, log
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str = ""
    ) -> None:
        """Start *command*, called *name* in messages, with *stdin* on its standard input.

        Raises:
            LaunchError: there is no such program.
        """
        try:
            with self._log.open("a") as output:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    text=True,
                    # its own session: Ctrl-C in the terminal reaches the command line only
                    start_new_session=True,
                )
        except OSError as error:
            self.stop()
            raise LaunchError(f"can't run {command[0]} ({self._option}): {error.strerror}") from error
        self._running[name] = process
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()

    def failure(self) -> str | None:
        for name, process in self._running.items():
            if process.poll() is not None:
                return f"{name} exited with code {process.returncode}"
        return None

    def stop(self) -> None:
        for process in self._running.values():
            for end in (process.terminate, process.kill):
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    end()
            # a process in an uninterruptible wait ends when the kernel lets it
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)


NodeDifference = Literal[
    "distbench", "python", "packages", "gpus", "gpu_driver", "cpu", "cpu_cores", "memory_bytes"
]
"""Facts that may differ between nodes: one of them is then slower, or computes differently."""


def node_differences(
    facts: Mapping[str, Mapping[str, Any]], allowed: Sequence[NodeDifference]
) -> dict[NodeDifference, str]:
    """Differences between the nodes with the *facts*, given by name, except in *allowed* ones.

    A node that differs makes all ranks wait for it, or trains differently. Each difference is reported for
    the first node and the first that differs from it.
    """
    (first, facts_of_first), *others = facts.items()
    found: dict[NodeDifference, str] = {}
    for key in get_args(NodeDifference):
        unlike = [(name, other) for name, other in others if facts_of_first.get(key) != other.get(key)]
        if unlike and key not in allowed:
            name, other = unlike[0]
            here, there = _differing_items(facts_of_first.get(key), other.get(key))
            found[key] = f"nodes differ in {key}: {here} on {first}, {there} on {name}"
    return found


def interface_problem(nodes: Sequence[NodeFacts], variables: Mapping[str, str], device: Device) -> str:
    """Reason why ranks on *nodes* can't open their sockets or reach each other; empty: none is known.

    Args:
        variables: Those that ranks get besides the ones of their node.
        device: Device of the ranks.
    """
    sockets = []
    for node in nodes:
        of_ranks = {**node.machine.get("variables", {}), **variables}
        try:
            selected = selected_interfaces(node.interfaces, of_ranks, device)
        except InterfaceError as error:
            return f"{node.name}: {error}"
        sockets.append(NodeSockets(node.name, node.address, selected))
    return shared_address_text(sockets)


def _differing_items(one: Any, other: Any) -> tuple[Any, Any]:
    """Return *one* and *other*, reduced to the differing keys if they are mappings."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one, other
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return {key: one.get(key) for key in keys}, {key: other.get(key) for key in keys}
