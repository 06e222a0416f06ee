from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from distbench.core.case import Device
from distbench.launchers.base import Launcher, LaunchSession, LaunchSpec, RankExit, RunningLaunch
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import RankRange, kill_run


@dataclass(frozen=True)
class TwoNodes(Launcher):
    """Spreads ranks over two fork servers, as a launcher of a cluster does over two hosts."""

    def node_count(self, processes: int, device: Device) -> int:
        return 2 if processes > 1 else 1

    def commands(self, launch: LaunchSpec) -> list[list[str]]:
        return [["node", str(node)] for node in range(launch.nodes)]

    def open_session(self, run_id: str) -> LaunchSession:
        return TwoNodesSite(run_id)


class TwoNodesSite(LaunchSession):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def launch(self, launch: LaunchSpec) -> RunningLaunch:
        environment = {**os.environ, **launch.environment, RUN_ID_VARIABLE: self._run_id}
        folder = launch.instructions.parent
        servers = [
            ForkServerClient(launch.imports, environment, folder / f"node{i}.log", 120)
            for i in range(launch.nodes)
        ]
        count, port, seen = launch.processes // launch.nodes, 0, []
        for node, server in enumerate(servers):
            share = RankRange(launch.processes, count, count * node, node, launch.nodes, master_port=port)
            server.launch(launch, share)
            while not port:
                seen += server.read_events(1)
                port = next((event["port"] for event in seen if "port" in event), 0)
        names = {f"node-{node}": [*range(count * node, count * (node + 1))] for node in range(launch.nodes)}
        return TwoNodesHandle(servers, seen, names)

    def close(self) -> None:
        kill_run(self._run_id)


class TwoNodesHandle(RunningLaunch):
    def __init__(
        self, servers: list[ForkServerClient], seen: list[dict[str, Any]], nodes: dict[str, list[int]]
    ) -> None:
        self._servers, self._seen, self.ranks_by_node = servers, seen, nodes

    def wait(self, seconds: float) -> list[RankExit]:
        events, self._seen = self._seen, []
        for server in self._servers:
            events += server.read_events(seconds / len(self._servers))
        return [RankExit(event["exit"], event["code"], time.time()) for event in events if "exit" in event]

    def signal(self, number: int) -> None:
        for server in self._servers:
            server.send({"signal": number})

    def stop(self) -> None:
        for server in self._servers:
            server.close()
