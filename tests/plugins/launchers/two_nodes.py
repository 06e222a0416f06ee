from __future__ import annotations

import os
from dataclasses import dataclass

from distbench.core.case import Device
from distbench.ipc.launch_spec import LaunchSpec, RankRange
from distbench.ipc.messages import RankExit, SignalRanks
from distbench.launchers.base import CancelCheck, Launcher, LaunchSession, RunningLaunch, never_cancelled
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.system.machine import RUN_ID_VARIABLE
from distbench.system.processes import kill_run


@dataclass(frozen=True)
class TwoNodes(Launcher):
    """Spreads ranks over two fork servers, as a launcher of a cluster does over two hosts."""

    def node_count(self, processes: int, device: Device) -> int:
        return 2 if processes > 1 else 1

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        return [["node", str(node)] for node in range(spec.nodes)]

    def open_session(self, run_id: str) -> LaunchSession:
        return TwoNodesSite(run_id)


class TwoNodesSite(LaunchSession):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        environment = {**os.environ, **spec.environment, RUN_ID_VARIABLE: self._run_id}
        servers = [
            ForkServerClient(spec.imports, environment, spec.folder / f"node{i}.log", 120)
            for i in range(spec.nodes)
        ]
        count, port, nodes = spec.processes // spec.nodes, 0, {}
        for node, server in enumerate(servers):
            share = RankRange(spec.processes, count, count * node, node, spec.nodes, master_port=port)
            port = server.launch(spec.with_ranks(share))
            nodes[f"node-{node}"] = list(share.ranks)
        return TwoNodesHandle(servers, nodes)

    def close(self) -> None:
        kill_run(self._run_id)


class TwoNodesHandle(RunningLaunch):
    def __init__(self, servers: list[ForkServerClient], nodes: dict[str, list[int]]) -> None:
        self._servers, self.ranks_by_node = servers, nodes

    def wait(self, seconds: float) -> list[RankExit]:
        events = [
            event for server in self._servers for event in server.read_events(seconds / len(self._servers))
        ]
        return [event for event in events if isinstance(event, RankExit)]

    def signal(self, number: int) -> None:
        for server in self._servers:
            server.send(SignalRanks(number))

    def stop(self) -> None:
        for server in self._servers:
            server.close()
