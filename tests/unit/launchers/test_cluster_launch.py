"""A launch over several agents: each is believed about its own ranks, and about this launch only."""

from collections.abc import Iterator

import pytest

from distbench.ipc.channels import AuthenticatedChannel
from distbench.ipc.launch_spec import RankRange
from distbench.ipc.messages import LaunchFailed, NodeFacts, RankExit, RankProgress
from distbench.ipc.trial_files import ProgressMark, progress_file, read_progress
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError
from distbench.launchers.cluster_launch import ClusterBuild, ClusterLaunch
from support.agent_channels import channel_pair, send_encoded
from support.shell_jobs import launch_of


class TwoAgents:
    """Connections to agents on near and far, which start ranks 0 and 1."""

    def __init__(self) -> None:
        self.near, near = self._agent("near")
        self.far, far = self._agent("far")
        self.connections = [near, far]
        self.placed = [(near, RankRange(2, 1, 0)), (far, RankRange(2, 1, 1))]

    def close(self) -> None:
        for each in (*self.connections, self.near, self.far):
            each.close()

    def _agent(self, name: str) -> tuple[AuthenticatedChannel, AgentConnection]:
        controller, agent = channel_pair()
        agent.send(NodeFacts(name, "127.0.0.1"))
        connection = AgentConnection(controller)
        connection.greet()
        return agent, connection


@pytest.fixture
def agents() -> Iterator[TwoAgents]:
    made = TwoAgents()
    yield made
    made.close()


def exits_of(launch: ClusterLaunch, count: int) -> list[RankExit]:
    seen: list[RankExit] = []
    while len(seen) < count:
        seen += launch.wait(10)
    return seen


@pytest.mark.drill("an agent tells ends of ranks of an earlier trial, and of another node")
def test_ends_of_other_ranks_and_of_other_launches_are_ignored(tmp_path, agents, drill):
    launch = ClusterLaunch(agents.placed, agents.close, launch_of(tmp_path, "true", 2), 3)
    for other in (RankExit(1, 1, 0.0, launch=2), RankExit(1, 1, 0.0), RankExit(0, 1, 0.0, launch=3)):
        agents.far.send(other)
    agents.far.send(RankProgress(((0, ProgressMark("time", 1, 1)), (1, ProgressMark("time", 2, 2)))))
    agents.far.send(own := RankExit(1, 0, 0.0, launch=3))
    agents.near.send(near := RankExit(0, 0, 0.0, launch=3))
    assert sorted(exits_of(launch, 2), key=lambda each: each.rank) == [near, own]
    assert read_progress(progress_file(tmp_path, 0)) is None
    assert read_progress(progress_file(tmp_path, 1)) == ProgressMark("time", 2, 2)
    drill.seen("nothing: they are ignored")


def test_a_preparation_does_not_end_with_an_earlier_one(tmp_path, agents):
    spec = launch_of(tmp_path, "true", once_per_cache=True)
    placed = [(agent, RankRange(1, 1)) for agent in agents.connections]
    launch = ClusterBuild(placed, agents.close, spec, 2)
    agents.far.send(RankExit(0, 0, 0.0, launch=1))
    agents.near.send(RankExit(0, 0, 0.0, launch=2))
    agents.far.send(RankExit(0, 3, 0.0, launch=2))
    with pytest.raises(LaunchError, match="far: the build process exited with code 3"):
        exits_of(launch, 1)


@pytest.mark.parametrize(
    "data", [b"no JSON", b'{"type": "RankExit", "rank": "../../x", "code": 0, "at": 0.0}', b'{"type": "New"}']
)
def test_an_agent_that_sends_no_message_ends_the_launch_by_name(tmp_path, agents, data):
    launch = ClusterLaunch(agents.placed, agents.close, launch_of(tmp_path, "true", 2), 1)
    send_encoded(agents.far, data)
    with pytest.raises(LaunchError, match=r"the agent on far: (a|invalid) message"):
        exits_of(launch, 1)


def test_a_failure_of_an_agent_is_told_by_name(tmp_path, agents):
    launch = ClusterLaunch(agents.placed, agents.close, launch_of(tmp_path, "true", 2), 1)
    agents.near.send(LaunchFailed("no space"))
    with pytest.raises(LaunchError, match="near: no space"):
        exits_of(launch, 1)
