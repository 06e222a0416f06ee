"""The process between a command and Ray: ``python -m distbench.launchers.ray.driver``.

nodes {"address": ...}        print the resources of each node that is alive, as JSON
dashboard {"address": ...}    print the address of the dashboard, as JSON; empty: the cluster has none
agents {...}                  keep an agent on each node of a placement group until the last of them has ended

The token of the agents comes by the standard input, and goes to the actors in a call. An actor is the parent
of its agent, which ends with it, and so do the ranks: if Ray ends the actor, and if the node loses Ray.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from distbench.ipc.channels import NODE_VARIABLE
from distbench.launchers.nodes import AGENT_ARGUMENTS, forwarded_environment
from distbench.system.processes import die_with_parent


class AgentActor:
    """The actor on a node."""

    def node(self) -> str:
        """Ray's id of the node."""
        ray: Any = importlib.import_module("ray")
        return str(ray.get_runtime_context().get_node_id())

    def serve(self, arguments: Sequence[str], environment: Mapping[str, str], token: str) -> int:
        """Run an agent until it ends; return its exit code."""
        # Ray's workers have the niceness 15, so that ranks would wait for all else on the node
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        agent = subprocess.Popen(
            [sys.executable, *arguments, str(os.getpid())],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            text=True,
        )
        agent.communicate(f"{token}\n")
        return agent.returncode


def _alive_nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _node_names(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Map Ray's id of each of *nodes* to its name.

    The name is that of its host, unless several of Ray's nodes are on one.
    """
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    return {
        node["NodeID"]: host if hosts[host] == 1 else f"{host}-{node['NodeID'][:6]}"
        for node, host in ((node, node["NodeManagerHostname"]) for node in nodes)
    }


def _start_actors(ray: Any, request: dict[str, Any]) -> list[Any] | None:
    """Start an actor in each bundle; None if Ray has no room for them in time."""
    scheduling: Any = importlib.import_module("ray.util.scheduling_strategies")
    group = ray.util.placement_group(request["bundles"], strategy=request["strategy"])
    if not group.wait(request["timeout_s"]):
        return None
    actors = []
    for number, bundle in enumerate(request["bundles"]):
        host = ray.remote(AgentActor).options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources={name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")},
            max_restarts=0,
            scheduling_strategy=scheduling.PlacementGroupSchedulingStrategy(group, number),
        )
        actors.append(host.remote())
    return actors


def _run_agents(ray: Any, request: dict[str, Any], token: str) -> int:
    if (actors := _start_actors(ray, request)) is None:
        return _print_error(
            f"Ray could not place {request['bundles']} ({request['strategy']}) within "
            f"{request['timeout_s']:g} s; ray status shows the free resources"
        )
    names, environment = _node_names(_alive_nodes(ray)), forwarded_environment()
    ids = ray.get([actor.node.remote() for actor in actors])
    calls = {
        actor.serve.remote(AGENT_ARGUMENTS, {**environment, NODE_VARIABLE: names[node]}, token): names[node]
        for actor, node in zip(actors, ids, strict=True)
    }
    code = 0
    while left := list(calls):
        (ended, *_), _ = ray.wait(left)
        name = calls.pop(ended)
        try:
            own = ray.get(ended)
            # as a shell reports a signal; a negative code would be another one of this process
            code = (own if own >= 0 else 128 - own) or code
        except ray.exceptions.RayError as error:
            code = _print_error(f"the actor on {name} exited: {type(error).__name__}: {error}")
    return code


def _print_error(why: str) -> int:
    print(why, file=sys.stderr, flush=True)  # noqa: T201
    return 1


def main(command: str, request: dict[str, Any]) -> int:
    """Run one of the commands above; return its exit code."""
    if command == "agents":
        die_with_parent(os.getppid())
    # it has types in some versions only
    ray: Any = importlib.import_module("ray")
    environment = {"runtime_env": request["runtime_env"]} if request.get("runtime_env") else {}
    cluster = ray.init(address=request["address"] or "auto", logging_level="warning", **environment)
    if command == "agents":
        return _run_agents(ray, request, sys.stdin.readline().strip())
    answer = (
        cluster.dashboard_url or ""
        if command == "dashboard"
        else [node["Resources"] for node in _alive_nodes(ray)]
    )
    print(json.dumps(answer), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], json.loads(sys.argv[2])))
