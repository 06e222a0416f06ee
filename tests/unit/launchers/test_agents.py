"""Agents on several nodes, here all on this host: ranks in their places, and nobody left when one is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath

import psutil
import pytest

from distbench.core.case import PluginChoice
from distbench.core.measurement import MeasureConfig, TimeLimits
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.ipc.build_files import BuildJournalReader
from distbench.ipc.channels import (
    CONTROLLER_ROLE,
    CONTROLLERS_VARIABLE,
    NODE_VARIABLE,
    PATIENCE_VARIABLE,
    PROTOCOL,
    TOKEN_VARIABLE,
    AuthenticatedChannel,
    new_token,
)
from distbench.ipc.file_transfer import file_chunks
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import EndRun, NodeFacts, RankExit
from distbench.ipc.trial_files import ProgressMark, TrialInstructions, log_file, progress_file, read_progress
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError, LaunchUnsupportedError, NodesUnavailableError
from distbench.launchers.nodes import AGENT_ARGUMENTS, Node, StartedAgents, assign_ranks, node_differences
from distbench.launchers.ssh import Ssh
from distbench.metrics.telemetry.host import sibling_agents
from distbench.record.run_folder import new_run_id
from distbench.system import clock
from distbench.system.machine import RUN_ID_VARIABLE, machine_facts, visible_gpu_count
from distbench.system.processes import processes_of_run
from support.agent_channels import channel_pair
from support.fault_table import Drill
from support.leftover_processes import listening_addresses
from support.records import case
from support.runs import QUICK
from support.shell_jobs import codes, launch_of, sleepers, soon

HERE = ["sh", "-c", 'exec sh -c "$2"', "shell"]
"""A remote shell that stays on this host."""


SECRET = new_token()


class Known(Ssh):
    """A launcher whose token the test knows."""

    def token_and_port(self) -> tuple[str, int]:
        return SECRET, 0


class AgentSite:
    """A site of two nodes, and the agents that it has."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.run_id = folder, new_run_id()
        given = {"hosts": ["near:1", "far:2"], "shell": HERE, "start_timeout": 30.0, **options}
        self.launcher = Known(**given)  # type: ignore[arg-type]
        self.site = self.launcher.open_session(self.run_id)

    def agent(self, node: str) -> psutil.Process:
        """The agent on *node*."""
        (found,) = [
            each
            for each in psutil.Process().children(recursive=True)
            if each.environ().get("DISTBENCH_NODE") == node and "agent" in each.cmdline()
        ]
        return found

    def nobody_left(self) -> bool:
        return not [pid for node in ("near", "far") for pid in processes_of_run(f"{self.run_id}@{node}")]


@pytest.fixture
def cluster(tmp_path, chore) -> Iterator[AgentSite]:
    made = AgentSite(tmp_path / "run")
    yield made
    made.site.close()
    soon(made.nobody_left, "processes were left")


def test_nodes_are_filled_in_their_order():
    nodes = [Node("a", 4), Node("b", 2), Node("c", 4)]
    placed = [
        (share.node_rank, share.first, share.count, share.node_count)
        for share in assign_ranks(nodes, 7, "cpu")
    ]
    assert placed == [(0, 0, 4, 3), (1, 4, 2, 3), (2, 6, 1, 3)]
    assert [share.count for share in assign_ranks(nodes, 3, "cpu")] == [3]


@pytest.mark.parametrize(
    ("other", "allowed", "told"),
    [
        ({}, [], {}),
        ({"name": "b", "address": "10.0.0.2"}, [], {}),
        (
            {"gpus": ["H100", "H100"]},
            [],
            {"gpus": "nodes differ in gpus: ['H200', 'H200'] on a, ['H100', 'H100'] on b"},
        ),
        (
            {"packages": {"torch": "2.12", "numpy": "2"}, "distbench": "fed"},
            [],
            {
                "distbench": "nodes differ in distbench: abc on a, fed on b",
                "packages": "nodes differ in packages: {'torch': '2.13'} on a, {'torch': '2.12'} on b",
            },
        ),
        (
            {"packages": {"torch": "2.12", "numpy": "2"}, "distbench": "fed"},
            ["packages"],
            {"distbench": "nodes differ in distbench: abc on a, fed on b"},
        ),
        ({"packages": {"torch": "2.12", "numpy": "2"}}, ["packages"], {}),
    ],
)
def test_nodes_that_differ_are_told_apart_by_what(other, allowed, told):
    one = {
        "name": "a",
        "distbench": "abc",
        "gpus": ["H200", "H200"],
        "packages": {"torch": "2.13", "numpy": "2"},
    }
    assert node_differences({"a": one, "b": {**one, **other}, "c": one}, allowed) == told


def test_a_node_must_have_the_gpus_that_were_counted_on(cluster):
    if visible_gpu_count() > 1:
        pytest.skip("far has two GPUs")
    with pytest.raises(
        NodesUnavailableError, match=r"has \d visible GPUs, but the launcher assigns it \d ranks"
    ):
        cluster.site.launch(launch_of(cluster.folder, "true", 2, device="cuda"))


def test_an_interface_that_nodes_lack_is_named_before_a_rank_starts(cluster):
    launch = replace(launch_of(cluster.folder, ":", 2), environment={"GLOO_SOCKET_IFNAME": "eth77"})
    with pytest.raises(NodesUnavailableError, match=r"^near: GLOO_SOCKET_IFNAME = eth77: .*\blo\b"):
        cluster.site.launch(launch)
    assert not list(cluster.folder.rglob("warm_parent.log"))


@pytest.mark.drill("the clock of a node is two hours off")
def test_times_are_those_of_the_command_whatever_the_clock_of_a_node_says(tmp_path, chore, drill):
    (name, at_boot), hours = *clock.clock_environment().items(), 2 * 3600
    wrong = f'export {name}={float(at_boot) - hours}; exec sh -c "$2"'
    cluster = AgentSite(tmp_path / "run", shell=["sh", "-c", wrong, "shell"])
    began = clock.now()
    handle = cluster.site.launch(launch_of(cluster.folder, "true", 2))
    exits = []
    while len(exits) < 2:
        exits += handle.wait(10)
    handle.stop()
    assert len(exits) == 2 and all(began < each.at < clock.now() for each in exits)
    drill.seen("nothing: its times follow the command's clock")
    cluster.site.close()


@pytest.mark.drill("two runs at once on the same nodes")
def test_two_runs_on_the_same_nodes_leave_each_other_alone(cluster, nap, drill):
    other = AgentSite(cluster.folder.parent / "other")
    handles = [each.site.launch(launch_of(each.folder, f"sleep {nap}", 2)) for each in (cluster, other)]
    soon(lambda: len(sleepers(nap)) == 4, "they never began")
    other.site.close()
    soon(other.nobody_left, "processes were left")
    assert len(sleepers(nap)) == 2
    assert handles[0].wait(0.5) == []
    drill.seen("nothing: they only share the cores")
    handles[0].stop()


def sampled(folder: Path, *metrics: PluginChoice) -> LaunchSpec:
    """Launch of two ranks for whose trial *metrics* sample; to be stopped before they do anything."""
    folder.mkdir(exist_ok=True)
    file = folder / "trial.json"
    TrialInstructions("run", case("ddp", 2), MeasureConfig(), TimeLimits(), list(metrics), weights="").write(
        file
    )
    return LaunchSpec("rank", file, 2, is_sampled=True)


@pytest.mark.parametrize("hours", [0, 2])
def test_each_node_samples_for_itself_in_the_time_of_the_command(tmp_path, chore, monkeypatch, hours):
    (name, at_boot) = next(iter(clock.clock_environment().items()))
    ahead = f'export {name}={float(at_boot) + hours * 3600}; exec sh -c "$2"'
    cluster = AgentSite(tmp_path / "run", shell=["sh", "-c", ahead, "shell"])
    with closing(cluster.site) as site:
        began = clock.now()
        handle = site.launch(sampled(cluster.folder, PluginChoice("telemetry", {})))
        agents = [cluster.agent(node) for node in ("near", "far")]
        assert not [m for agent in agents for m in agent.memory_maps() if "libtorch" in m.path]
        monkeypatch.setenv(RUN_ID_VARIABLE, cluster.run_id)
        assert {agent.pid for agent in agents} <= set(sibling_agents()), "they share this host"
        handle.stop()
        handle.stop()
        rows = handle.sampler_tables()["telemetry"]
        assert all(began < row["at"] < clock.now() for row in rows)
        for node in ("near", "far"):
            own = [row for row in rows if row["node"] == node]
            assert sum("busy_s" in row for row in own) >= 2
            assert sum("others_busy" in row for row in own) == 1
        # those of a trial are not those of the next, nor of one that is not sampled
        unsampled = site.launch(replace(sampled(cluster.folder), is_sampled=False))
        unsampled.stop()
        assert unsampled.sampler_tables() == {}


BROKEN_SAMPLER = """
from dataclasses import dataclass
from distbench.metrics.base import Metric, Sampler

class Fails(Sampler):
    def stop(self):
        raise OSError("it is gone")

@dataclass(frozen=True)
class Broken(Metric):
    columns = ()
    begins: bool = True

    def sampler(self, case):
        if not self.begins:
            raise OSError(f"no sensor for {case.world_size}")
        return Fails()
"""


def test_a_sampler_that_fails_on_a_node_is_told_with_its_name(cluster, tmp_path, monkeypatch):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "broken.py").write_text(BROKEN_SAMPLER)
    monkeypatch.setenv(PLUGIN_PATH_VARIABLE, str(tmp_path))
    handle = cluster.site.launch(sampled(cluster.folder, PluginChoice("broken", {})))
    handle.stop()
    told = "{}: the sampler of metric broken: OSError: it is gone"
    assert handle.failed_samplers() == {"broken": f"{told.format('near')}; {told.format('far')}"}
    assert handle.sampler_tables() == {}
    # the rank of the node, not both of the case
    with pytest.raises(LaunchError, match="near: the sampler of metric broken: OSError: no sensor for 1"):
        cluster.site.launch(sampled(cluster.folder, PluginChoice("broken", {"begins": False})))
    soon(cluster.nobody_left, "processes were left")


def test_facts_are_those_of_the_nodes(tmp_path, chore):
    shell = ["sh", "-c", 'export NCCL_DEBUG=WARN; exec sh -c "$2"', "shell"]
    cluster = AgentSite(tmp_path / "run", shell=shell)
    assert cluster.site.machine is None
    cluster.site.launch(launch_of(cluster.folder, "true", 2)).stop()
    assert cluster.site.machine
    assert cluster.site.machine["variables"]["NCCL_DEBUG"] == "WARN"
    assert cluster.site.machine.keys() == machine_facts().keys()
    cluster.site.close()


def test_every_rank_runs_in_its_place(cluster):
    out = cluster.folder / "rank"
    place = "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK of $DISTBENCH_NODE"
    for _ in range(2):
        handle = cluster.site.launch(launch_of(cluster.folder, f"echo {place} > {out}$RANK", 3))
        exits = []
        while len(exits) < 3:
            exits += handle.wait(10)
        handle.stop()
        assert sorted((each.rank, each.code) for each in exits) == [(0, 0), (1, 0), (2, 0)]
        assert [Path(f"{out}{rank}").read_text() for rank in range(3)] == [
            "0 of 3, 0 of 1 on node 0 of near\n",
            "1 of 3, 0 of 2 on node 1 of far\n",
            "2 of 3, 1 of 2 on node 1 of far\n",
        ]


def test_ranks_of_all_nodes_meet_at_rank_0(cluster):
    out = cluster.folder / "rank"
    launch = launch_of(cluster.folder, f"echo $MASTER_ADDR $MASTER_PORT > {out}$RANK", 2)
    codes(cluster.site.launch(launch))
    soon(lambda: Path(f"{out}1").is_file() and Path(f"{out}1").read_text(), "rank 1 did not run")
    address, port = Path(f"{out}0").read_text().split()
    assert Path(f"{out}1").read_text().split() == [address, port]
    assert int(port) > 0


SLOW_ON_FAR = """
import os, time
from pathlib import Path

time.sleep(2.0 if os.environ["DISTBENCH_NODE"] == "far" else 0.0)
Path(__file__).with_name("imported-" + os.environ["DISTBENCH_NODE"]).touch()
"""


def test_no_rank_starts_before_all_nodes_have_imported(cluster, tmp_path, monkeypatch):
    (tmp_path / "slow_on_far.py").write_text(SLOW_ON_FAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    out = cluster.folder / "rank"
    launch = launch_of(cluster.folder, f"ls {tmp_path} > {out}$RANK", 2, imports=("slow_on_far",))
    codes(cluster.site.launch(launch))
    soon(lambda: Path(f"{out}0").is_file() and Path(f"{out}0").read_text(), "rank 0 did not run")
    assert {"imported-near", "imported-far"} <= set(Path(f"{out}0").read_text().split())


def test_the_token_is_on_no_command_line_and_in_no_file(cluster, nap):
    handle = cluster.site.launch(launch_of(cluster.folder, f"sleep {nap}", 2))
    soon(lambda: len(sleepers(nap)) == 2, "its ranks did not start")
    agents = [cluster.agent(node) for node in ("near", "far")]
    processes = [each for agent in agents for each in (agent, *agent.children(recursive=True))]
    assert len(processes) >= 6
    assert not [each for each in processes if TOKEN_VARIABLE in each.environ()]
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert len([line for line in lines if f"sleep {nap}" in line]) >= 2, "its ranks are among them"
    assert not [line for line in lines if SECRET in line]
    files = [file for file in cluster.folder.parent.rglob("*") if file.is_file()]
    assert [file for file in files if file.name == "agents.log"]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert not [each for agent in agents for each in listening_addresses(agent)]
    handle.stop()


def test_ends_of_a_trial_that_was_stopped_are_not_those_of_the_next(cluster):
    done = cluster.folder / "done"
    over = cluster.site.launch(launch_of(cluster.folder, f"touch {done}$RANK", 2))
    soon(lambda: all(Path(f"{done}{rank}").exists() for rank in (0, 1)), "they never ended")
    time.sleep(0.5)
    over.stop()
    handle = cluster.site.launch(launch_of(cluster.folder, "sleep 600", 2))
    assert [end for _ in range(4) for end in handle.wait(0.25)] == []
    handle.stop()


def test_an_agent_of_no_node_is_refused(tmp_path, chore):
    renamed = 'exec sh -c "$(echo "$2" | sed s/DISTBENCH_NODE=far/DISTBENCH_NODE=near/)"'
    cluster = AgentSite(tmp_path / "run", shell=["sh", "-c", renamed, "shell"])
    with pytest.raises(
        LaunchError, match="agents connected from near, near; expected one from each of near, far"
    ):
        cluster.site.launch(launch_of(cluster.folder, "true", 2))
    cluster.site.close()
    soon(cluster.nobody_left, "processes were left")


class PartialEngine(Ssh):
    """Hosts as an engine would choose them: nobody knows which before their agents say so."""

    def node_list(self) -> list[Node]:
        return [Node("", node.slots) for node in super().node_list()]

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        return super().start_agents(super().node_list(), environment, log)


def test_agents_on_nodes_that_an_engine_chooses_are_numbered_by_name(tmp_path, chore):
    launcher = PartialEngine(hosts=["near:1", "far:1"], shell=HERE, start_timeout=30.0)
    with closing(launcher.open_session("chosen")) as site:
        handle = site.launch(launch_of(tmp_path, "true", 2))
        assert handle.ranks_by_node == {"far": [0], "near": [1]}
        handle.stop()


def test_two_agents_on_one_node_are_refused_though_the_engine_chose_it(tmp_path, chore):
    renamed = 'exec sh -c "$(echo "$2" | sed s/DISTBENCH_NODE=far/DISTBENCH_NODE=near/)"'
    launcher = PartialEngine(
        hosts=["near:1", "far:1"], shell=["sh", "-c", renamed, "shell"], start_timeout=30.0
    )
    with (
        closing(launcher.open_session("doubled")) as site,
        pytest.raises(
            LaunchError, match="agents connected from near, near; expected one from each of node 0"
        ),
    ):
        site.launch(launch_of(tmp_path, "true", 2))


def test_a_patient_agent_finds_a_controller_that_comes_late_and_comes_again_until_the_run_is_over():
    token, held = new_token(), socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    held.close()
    told = {
        TOKEN_VARIABLE: token,
        CONTROLLERS_VARIABLE: f"127.0.0.1:{port}",
        RUN_ID_VARIABLE: "patient",
        PATIENCE_VARIABLE: "30",
    }
    agent = psutil.Popen([sys.executable, *AGENT_ARGUMENTS], env={**os.environ, **told})
    for request in (None, EndRun()):
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(20)
            met = AgentConnection(AuthenticatedChannel(listener.accept()[0], token, CONTROLLER_ROLE))
        met.greet()
        if request:
            met.send(request)
        met.close()
    assert agent.wait(20) == 0


def test_an_agent_whose_handshake_fails_tries_again_and_one_that_is_refused_ends():
    token = new_token()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        told = {
            TOKEN_VARIABLE: token,
            CONTROLLERS_VARIABLE: f"127.0.0.1:{listener.getsockname()[1]}",
            RUN_ID_VARIABLE: "lossy",
            NODE_VARIABLE: "lonely",
        }
        command = [sys.executable, *AGENT_ARGUMENTS]
        agent = psutil.Popen(command, env={**os.environ, **told})
        for _ in range(2):
            listener.accept()[0].close()
        met = AgentConnection(AuthenticatedChannel(listener.accept()[0], token, CONTROLLER_ROLE))
        met.greet()
        met.close()
        assert agent.wait(20) == 0
    # nobody listens any more: no second try, which would outlast the limit
    done = subprocess.run(
        command, env={**os.environ, **told}, capture_output=True, text=True, timeout=25, check=False
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("lonely: can't reach the controller: 127.0.0.1:")
    assert line.endswith("Connection refused")


def test_an_agent_of_another_protocol_ends_at_once_with_both_numbers():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = {
            TOKEN_VARIABLE: new_token(),
            CONTROLLERS_VARIABLE: f"127.0.0.1:{listener.getsockname()[1]}",
            RUN_ID_VARIABLE: "newer",
        }
        words = [sys.executable, *AGENT_ARGUMENTS]
        agent = psutil.Popen(words, env={**os.environ, **told}, stderr=subprocess.PIPE, text=True)
        listener.settimeout(20)
        with listener.accept()[0] as connection:
            connection.sendall(b"distbench" + (PROTOCOL + 1).to_bytes(2, "big"))
            _, errors = agent.communicate(timeout=25)
        assert agent.returncode != 0
        assert f"speaks protocol {PROTOCOL + 1}, this end protocol {PROTOCOL} of distbench" in errors
        # there was no second try
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def kill_agent(cluster: AgentSite, number: signal.Signals, told: str, nap: str, drill: Drill) -> None:
    """Send *number* to an agent in a trial, which is *told* so; the next trial has other agents."""
    handle = cluster.site.launch(launch_of(cluster.folder, f"sleep {nap}", 2))
    soon(lambda: len(sleepers(nap)) == 2, "they never began")
    agent = cluster.agent("far")
    agent.send_signal(number)
    began = time.monotonic()
    with pytest.raises(LaunchError, match=told) as lost:
        while True:
            handle.wait(10)
    drill.noticed(time.monotonic() - began)
    drill.seen(str(lost.value))
    handle.stop()
    soon(lambda: not sleepers(nap), "a rank was left")
    soon(lambda: not agent.is_running(), "the agent was left")
    assert codes(cluster.site.launch(launch_of(cluster.folder, "true"))) == [0]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.drill(f"an agent gets {number.name} in a trial"))
        for number in (signal.SIGKILL, signal.SIGTERM)
    ],
)
def test_an_agent_that_is_gone_is_named_and_replaced(cluster, drill, nap, number):
    kill_agent(cluster, number, "lost the agent on far", nap, drill)


def test_an_agent_that_has_been_silent_for_seconds_is_named(cluster, nap):
    handle = cluster.site.launch(launch_of(cluster.folder, f"sleep {nap}", 2))
    soon(lambda: len(sleepers(nap)) == 2, "they never began")
    assert handle.silent_node() is None
    agent = cluster.agent("far")
    agent.suspend()
    soon(lambda: handle.wait(0.1) or handle.silent_node(), "it was not missed", 20)
    assert str(handle.silent_node()).startswith("no heartbeat from the agent on far for ")
    agent.resume()
    handle.stop()


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.drill("an agent gets SIGSTOP in a trial")
def test_an_agent_that_is_silent_is_given_up(cluster, drill, nap):
    kill_agent(cluster, signal.SIGSTOP, "no heartbeat from the agent on far for 30 s", nap, drill)


@pytest.mark.drill("no agent comes: the remote shell fails")
def test_a_node_that_can_not_be_reached_is_named_with_what_the_shell_says(tmp_path, chore, drill):
    away = 'test "$1" = near || { echo "$1: no route to host" >&2; exit 255; }; exec sh -c "$2"'
    cluster = AgentSite(tmp_path / "run", shell=["sh", "-c", away, "shell"])
    with pytest.raises(LaunchError, match=r"the remote shell of far exited with code 255") as caught:
        cluster.site.launch(launch_of(cluster.folder, "true", 2))
    drill.seen(str(caught.value))
    assert "far: no route to host" in str(caught.value)
    cluster.site.close()
    soon(cluster.nobody_left, "processes were left")


def test_a_python_that_fails_on_a_node_is_told_by_its_last_line(tmp_path, chore):
    failing = f'test "$1" = near || exec {sys.executable} -c "import nothing_of_that_name"; exec sh -c "$2"'
    cluster = AgentSite(tmp_path / "run", shell=["sh", "-c", failing, "shell"])
    with pytest.raises(LaunchError, match="the remote shell of far exited with code 1") as caught:
        cluster.site.launch(launch_of(cluster.folder, "true", 2))
    told = str(caught.value).splitlines()
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in told
    assert not [line for line in told if "Traceback" in line or line.startswith(" ")]
    (log,) = cluster.folder.rglob("agents.log")
    assert "Traceback" in log.read_text()
    cluster.site.close()
    soon(cluster.nobody_left, "processes were left")


class FixedPort(Known):
    """A launcher whose agents are told a port in advance."""

    port = 0

    def token_and_port(self) -> tuple[str, int]:
        return SECRET, self.port


def test_a_port_that_is_taken_is_no_result_of_a_trial(tmp_path, chore):
    with socket.create_server(("", 0)) as taken:
        FixedPort.port = taken.getsockname()[1]
        launcher = FixedPort(hosts=["near:1"], shell=HERE)
        with (
            closing(launcher.open_session("taken")) as site,
            pytest.raises(NodesUnavailableError, match=rf"can't listen for agents on port {FixedPort.port}"),
        ):
            site.launch(launch_of(tmp_path, "true"))


def single_rank_shell(*hidden: Path, before: str = "") -> list[str]:
    """A remote shell in which far sees folders of its own in the place of those *hidden*."""
    mounts = "".join(f"mount -t tmpfs none {folder}; " for folder in hidden)
    away = f'exec unshare --mount sh -c "{mounts}{before}$2"'
    return ["sh", "-c", f'test "$1" = near || {away}; exec sh -c "$2"', "shell"]


OWN = "$(dirname $(readlink /proc/self/fd/2))"
"""Folder of the trial as a rank sees it, whose output goes to its log there."""


@pytest.fixture
def separate_disks(tmp_path, chore) -> Iterator[AgentSite]:
    """Two nodes of which far does not see the run's folder."""
    run = tmp_path / "run"
    run.mkdir()
    made = AgentSite(run, shell=single_rank_shell(run))
    yield made
    made.site.close()
    soon(made.nobody_left, "processes were left")


@pytest.mark.drill("a node does not see the run's folder")
def test_what_ranks_write_comes_back_from_a_node_that_does_not_share_the_folder(separate_disks, drill):
    run, size = separate_disks.folder, 3_000_000
    (run / "needed").write_text("initial")
    told = f"echo in {OWN}; head -c {size} /dev/zero > {OWN}/rank$RANK.large; cp {OWN}/needed {OWN}/left"
    launch = launch_of(
        run, told, 2, input_files=(run / "needed", run / "absent"), output_files=(run / "left",)
    )
    handle = separate_disks.site.launch(launch)
    exits = []
    while len(exits) < 2:
        exits += handle.wait(10)
        # all of it is there when the end is told
        assert all((run / f"rank{each.rank}.large").stat().st_size == size for each in exits)
    handle.stop()
    assert sorted((each.rank, each.code) for each in exits) == [(0, 0), (1, 0)]
    assert (run / "left").read_text() == "initial"
    near, far = (Path((run / f"rank{rank}.log").read_text().split()[1]) for rank in (0, 1))
    assert near == run != far
    separate_disks.site.close()
    soon(lambda: not far.exists(), "the folder of the agent was left")
    drill.seen("the trial runs; its files come over the connection")


def test_signs_of_life_and_logs_of_a_rank_elsewhere_are_seen_while_it_runs(separate_disks, nap):
    run = separate_disks.folder
    sign = f"echo in step 3; printf 'time 3 7' > {OWN}/rank$RANK.progress; exec sleep {nap}"
    handle = separate_disks.site.launch(launch_of(run, sign, 2))
    soon(lambda: handle.wait(0.1) or read_progress(progress_file(run, 1)), "no sign came", 20)
    assert read_progress(progress_file(run, 1)) == ProgressMark("time", 3, 7)
    assert not log_file(run, 1).exists()
    handle.fetch_logs()
    assert log_file(run, 1).read_text() == "in step 3\n"
    handle.stop()
    assert not sleepers(nap)


def test_ranks_that_read_each_others_files_need_a_folder_that_their_nodes_share(separate_disks):
    with pytest.raises(LaunchUnsupportedError, match=r"read each other's files, and far can't see .*run"):
        separate_disks.site.launch(launch_of(separate_disks.folder, "true", 2, needs_shared_files=True))
    assert codes(
        separate_disks.site.launch(launch_of(separate_disks.folder, "true", 1, needs_shared_files=True))
    ) == [0]


@pytest.mark.drill("the disk of a node is full")
def test_a_full_disk_on_a_node_is_told_with_the_node(tmp_path, chore, drill):
    run, full = tmp_path / "run", tmp_path / "full"
    run.mkdir()
    full.mkdir()
    (run / "weights").write_bytes(bytes(2 << 20))
    small = f"mount -t tmpfs -o size=1m none {full}; export TMPDIR={full}; "
    cluster = AgentSite(run, shell=single_rank_shell(run, before=small))
    with pytest.raises(LaunchError, match=r"far: can't write weights to .*: No space left") as caught:
        cluster.site.launch(launch_of(run, "true", 2, input_files=(run / "weights",)))
    drill.seen(str(caught.value))
    cluster.site.close()


def test_a_node_that_has_no_place_for_a_copy_is_named(tmp_path, chore):
    run = tmp_path / "run"
    run.mkdir()
    # to be read still: the interpreter may lie there
    sealed = "".join(
        f"mount --rbind {place} {place}; mount -o remount,bind,ro {place}; " for place in ("/tmp", "/var/tmp")
    )
    cluster = AgentSite(run, shell=single_rank_shell(run, before=f"{sealed}unset TMPDIR; cd /tmp; "))
    with pytest.raises(LaunchError, match=r"far: can't copy .*run: .*No usable temporary"):
        cluster.site.launch(launch_of(run, "true", 2))
    cluster.site.close()


@pytest.mark.parametrize("code", [0, 3])
def test_each_node_with_a_cache_of_its_own_is_prepared(tmp_path, chore, monkeypatch, code):
    cache, run = tmp_path / "cache", tmp_path / "run"
    cache.mkdir()
    monkeypatch.setenv("DISTBENCH_CACHE", str(cache))
    cluster = AgentSite(run, shell=single_rank_shell(cache))
    seen = tmp_path / "seen"
    build = (
        f"touch {seen}-$DISTBENCH_NODE; echo on $DISTBENCH_NODE; test $DISTBENCH_NODE = near || exit {code}"
    )
    launch = launch_of(run, build, once_per_cache=True)
    assert codes(cluster.site.launch(launch)) == [0]
    assert sorted(file.name for file in tmp_path.glob("seen-*")) == ["seen-far", "seen-near"]
    (begun, ended) = BuildJournalReader(launch.instructions).read_new()
    assert (begun.item, begun.ended) == ("chore", False)
    assert (ended.item, ended.ended) == ("chore", True)
    assert ("far: CalledProcessError" in ended.failed) == bool(code)
    logs = [(run / name).read_text().splitlines()[0] for name in ("rank0.log", "rank0.far.log")]
    assert logs == ["on near", "on far"]
    cluster.site.close()


@pytest.mark.drill("kill -9 of the controller of two agents")
def test_agents_end_with_their_controller(tmp_path, chore, nap, drill):
    launch = launch_of(tmp_path, f"setsid env -i sleep {nap} & sleep {nap}", 2)
    script = (
        "import sys, time; from pathlib import Path; from distbench.ipc.launch_spec import LaunchSpec;"
        "from distbench.launchers.ssh import Ssh;"
        f"site = Ssh(hosts=['near:1', 'far:1'], shell={HERE!r}).open_session('killed');"
        f"handle = site.launch(LaunchSpec('prepare', Path({str(launch.instructions)!r}), 2)); time.sleep(600)"
    )
    controller = psutil.Popen([sys.executable, "-c", script])
    soon(lambda: len(sleepers(nap)) == 4, "they never began", 30)
    controller.kill()
    controller.wait()
    drill.noticed(soon(lambda: not sleepers(nap), "a process was left"))


@pytest.mark.train
@pytest.mark.drill("nodes never come, in a run of many trials")
def test_nodes_that_do_not_come_end_the_run_and_are_waited_for_once(tmp_path, run_suite, drill):
    calls = tmp_path / "calls"
    shell = f"['sh', '-c', 'echo $1 >> {calls}; exit 255', 'shell']"
    text = f"{QUICK}strategies: [ddp, fsdp]\ncheck: {{steps: 2}}\n"
    done = run_suite(f"{text}launcher: {{ssh: {{hosts: ['near:1', 'far:1'], shell: {shell}}}}}\n")
    assert done.code == 4
    assert sorted(calls.read_text().split()) == ["far", "near"]
    assert "exited with code 255" in done.errors
    (run,) = (tmp_path / "out").iterdir()
    resume = f"resume with: distbench run --resume {run}"
    # on a line of its own: the end of a log comes before it
    assert f"error: Stored results are intact. When the nodes are available, {resume}\n" in done.errors
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    drill.seen(done.errors.partition("error: ")[2])


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("share", [True, False])
def test_two_nodes_train_as_one(tmp_path, run_suite, share):
    (tmp_path / "out").mkdir()
    hidden = [] if share else [tmp_path / "out"]
    shell = "[" + ", ".join(f"'{word}'" for word in single_rank_shell(*hidden)) + "]"
    text = f"{QUICK}strategies: [ddp, {{zero: {{stage: 2}}}}]\ncheck: {{steps: 2}}\n"
    near = run_suite(f"{text}launcher: local\n")
    far = run_suite(f"{text}launcher: {{ssh: {{hosts: ['near:1', 'far:1'], shell: {shell}}}}}\n")
    for strategy in ("ddp", "zero2"):
        losses = [run.record(strategy)["samples"]["loss"] for run in (near, far)]
        assert losses[0] == losses[1]
    assert near.record("ddp")["nodes"] == {}
    assert far.record("ddp")["nodes"] == {"near": [0], "far": [1]}


def test_a_file_that_can_not_be_stored_is_told_with_its_node(tmp_path):
    sent = tmp_path / "sent"
    sent.touch()
    (tmp_path / "run" / "rank2.d" / "inner").mkdir(parents=True)
    own_end, agent_end = channel_pair()
    agent = AgentConnection(own_end)
    agent.receive_files_into(tmp_path / "run")
    agent.expect(PurePosixPath(), range(2, 3), [])
    agent_end.send(NodeFacts("far", ""))
    agent.greet()
    for chunk in file_chunks(sent, "rank2.d"):
        agent_end.send(chunk)
    with pytest.raises(LaunchError, match=r"far: can't store rank2\.d: Is a directory"):
        soon(lambda: bool(agent.read_events()), "nothing came")
    agent.close()
    agent_end.close()


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        ("trials/a/0/rank2.json", True),
        ("trials/a/0/rank3.error.json", True),
        ("trials/a/0/rank2.near.log", True),
        ("scratch/weights", True),
        ("suite.yaml", False),
        ("run.json", False),
        ("trials/a/0/record.json", False),
        ("trials/a/0/rank1.json", False),
        ("trials/a/0/rank22.json", False),
        ("trials/b/0/rank2.json", False),
        ("trials/a/0/deep/rank2.json", False),
        ("scratch/other", False),
        ("../x", False),
        ("trials/a/0/rank2.\0json", False),
    ],
)
def test_an_agent_writes_the_files_of_its_own_ranks_and_no_others(tmp_path, name, is_taken):
    root, sent = tmp_path / "run", tmp_path / "sent"
    root.mkdir()
    (root / "suite.yaml").write_text("mine")
    sent.write_text("theirs")
    own_end, agent_end = channel_pair()
    agent = AgentConnection(own_end)
    agent.receive_files_into(root)
    agent.expect(PurePosixPath("trials/a/0"), range(2, 4), ["scratch/weights"])
    for chunk in file_chunks(sent, name):
        agent_end.send(chunk)
    agent_end.send(RankExit(2, 0, 0.0))
    if is_taken:
        soon(lambda: bool(agent.read_events()), "nothing came")
        assert (root / name).read_text() == "theirs"
    else:
        with pytest.raises(LaunchError, match="received"):
            soon(lambda: bool(agent.read_events()), "nothing came")
        assert [file.name for file in root.rglob("*")] == ["suite.yaml"]
    assert (root / "suite.yaml").read_text() == "mine"
    agent.close()
    agent_end.close()
