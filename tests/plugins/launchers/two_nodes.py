from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from distbench.core.case import Device
from distbench.launchers.base import Exit, Handle, Launch, Launcher, Site
from distbench.launchers.server import Server
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import Share, kill_tagged


@dataclass(frozen=True)
class TwoNodes(Launcher):
    """Spreads ranks over two warm parents, as a launcher of a cluster does over two hosts."""

    def nodes(self, processes: int, device: Device) -> int:
        return 2 if processes > 1 else 1

    def commands(self, launch: Launch) -> list[list[str]]:
        return [["node", str(node)] for node in range(launch.nodes)]

    def open(self, run_id: str) -> Site:
        return TwoNodesSite(run_id)


class TwoNodesSite(Site):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def launch(self, launch: Launch) -> Handle:
        environment = {**os.environ, **launch.environment, RUN_ID_VARIABLE: self._run_id}
        folder = launch.file.parent
        servers = [
            Server(launch.imports, environment, folder / f"node{i}.log", 120) for i in range(launch.nodes)
        ]
        count, port, seen = launch.processes // launch.nodes, 0, []
        for node, server in enumerate(servers):
            share = Share(launch.processes, count, count * node, node, launch.nodes, port=port)
            server.launch(launch, share)
            while not port:
                seen += server.events(1)
                port = next((event["port"] for event in seen if "port" in event), 0)
        names = {f"node-{node}": [*range(count * node, count * (node + 1))] for node in range(launch.nodes)}
        return TwoNodesHandle(servers, seen, names)

    def close(self) -> None:
        kill_tagged(self._run_id)


class TwoNodesHandle(Handle):
    def __init__(
        self, servers: list[Server], seen: list[dict[str, Any]], nodes: dict[str, list[int]]
    ) -> None:
        self._servers, self._seen, self.nodes = servers, seen, nodes

    def wait(self, seconds: float) -> list[Exit]:
        events, self._seen = self._seen, []
        for server in self._servers:
            events += server.events(seconds / len(self._servers))
        return [Exit(event["exit"], event["code"], time.time()) for event in events if "exit" in event]

    def signal(self, number: int) -> None:
        for server in self._servers:
            server.send({"signal": number})

    def stop(self) -> None:
        for server in self._servers:
            server.close()
