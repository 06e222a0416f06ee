"""Processes that another launcher has started: one run of all, by real processes of one host.

On two nodes, by torchrun, mpirun and srun: tox -e cluster.
"""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.errors import InfrastructureError
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.ipc.channels import TOKEN_VARIABLE, connect_to_controller, new_token
from distbench.launchers.base import LaunchError
from distbench.launchers.env.address import AddressFile, ControllerAddress
from distbench.launchers.env.controller import NodeLeaders
from distbench.system.rank_variables import KNOWN_VARIABLES, read_placement
from support.agent_channels import send_encoded
from support.runs import MODELS, PLUGINS, QUICK, Finished, run_in
from support.shell_jobs import codes, launch_of, sleepers, soon
from support.suites import write_suite

REFUSED = "distbench starts its own ranks: start it once, or set launcher: env"
PRETENDED = f"{QUICK}strategies: [pretended]\nlauncher: pretend\n"
JOINED = f"{QUICK}strategies: [ddp]\nlauncher: {{env: {{start_timeout: 20}}}}\n"


@pytest.fixture(autouse=True)
def outside_launchers(monkeypatch):
    """No launcher around."""
    for name in {name for known in KNOWN_VARIABLES for name in (*known.required, *known.job)} | {
        TOKEN_VARIABLE
    }:
        monkeypatch.delenv(name, raising=False)


def placed(rank: int, size: int, local_rank: int = 0, local_size: int = 1, **others: str) -> dict[str, str]:
    """Variables that torchrun sets."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {**{name: str(number) for name, number in numbers.items()}, **where, **others}


@pytest.mark.parametrize("command", ["run", "collectives", "doctor", "prepare", "calibrate", "gate"])
def test_without_the_launcher_a_process_above_rank_0_is_refused(tmp_path, distbench, command):
    suite = write_suite(tmp_path, PRETENDED.replace("world_sizes: [2]", "world_sizes: [2]\ncollectives: {}"))
    words = [command, str(suite), *(["--self-test"] if command == "gate" else [])]
    out = [] if command == "prepare" else ["--out", str(tmp_path / "out")]
    done = distbench(*words, *out, **placed(1, 2))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"RANK = 1, WORLD_SIZE = 2: {REFUSED}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_the_launcher_rank_0_runs_and_warns(tmp_path, distbench):
    suite = write_suite(tmp_path, PRETENDED)
    done = distbench("run", str(suite), "--out", str(tmp_path / "out"), **placed(0, 2))
    assert done.returncode == 0, done.stderr
    assert f"warning: RANK = 0, WORLD_SIZE = 2: {REFUSED}" in done.stderr
    done = distbench("run", str(suite), "--out", str(tmp_path / "out"), **placed(0, 1))
    assert REFUSED not in done.stderr


@pytest.mark.parametrize("command", ["run", "plan"])
def test_variables_that_can_not_be_are_refused_with_the_line_of_the_launcher(tmp_path, distbench, command):
    suite = write_suite(tmp_path, JOINED)
    words = ["--out", str(tmp_path / "out")] if command == "run" else []
    done = distbench(command, str(suite), *words)
    assert done.returncode == 2
    assert "suite.yaml:9: launcher.env: none of RANK, OMPI_COMM_WORLD_RANK" in done.stderr
    done = distbench(command, str(suite), *words, **placed(0, 2, TORCHELASTIC_RESTART_COUNT="2"))
    assert (done.returncode, "TORCHELASTIC_RESTART_COUNT = 2" in done.stderr) == (2, True)
    done = distbench(command, str(suite), *words, **placed(0, 2, MASTER_ADDR="", DISTBENCH_TOKEN="0" * 64))
    assert "launcher.env.address = '': DISTBENCH_TOKEN is set, but not MASTER_ADDR" in done.stderr
    assert not (tmp_path / "out").exists()


def test_processes_that_are_bound_to_fewer_cores_than_ranks_are_refused(tmp_path, distbench):
    suite, allowed = write_suite(tmp_path, JOINED), os.sched_getaffinity(0)
    if (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one core")
    os.sched_setaffinity(0, {min(allowed)})
    try:
        done = distbench("plan", str(suite), **placed(0, 2, 0, 2))
    finally:
        os.sched_setaffinity(0, allowed)
    assert done.returncode == 2
    assert "this process is bound to 1 of" in done.stderr
    assert "mpirun --bind-to none" in done.stderr


def test_the_plan_is_that_of_all_nodes(monkeypatch):
    for name, value in placed(0, 8, 0, 2).items():
        monkeypatch.setenv(name, value)
    launcher = registry.create_plugin("launchers", PluginChoice("env", {}))
    machine = launcher.machine("cpu")
    assert (machine.nodes, machine.devices) == (4, 8)
    assert registry.create_plugin("launchers", PluginChoice("env", {"slots": 8})).machine("cpu").devices == 32


def test_a_command_that_joins_no_others_says_so(tmp_path, distbench):
    done = distbench("prepare", str(write_suite(tmp_path, JOINED)), **placed(0, 2, 0, 2))
    assert done.returncode == 2
    assert (
        "launcher.env: works with distbench run, collectives, doctor, gate and calibrate only" in done.stderr
    )


def test_further_processes_of_a_node_end_at_once(tmp_path, distbench):
    suite = write_suite(tmp_path, JOINED)
    done = distbench("run", str(suite), "--out", str(tmp_path / "out"), **placed(3, 4, 1, 2))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Job:
    """Rank 0 in this process, and the first process of a second node in one of its own."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self._variables = folder, variables
        self._suite = write_suite(folder, JOINED)
        self._stack = ExitStack()
        self.members: list[subprocess.Popen[str]] = []

    def start_member(self, rank: int = 1, size: int = 2, **others: str) -> subprocess.Popen[str]:
        """Start the first process of another node."""
        words = ["run", str(self._suite), "--out", str(self.folder / "out")]
        told = {**placed(rank, size), **self._variables, "DISTBENCH_NODE": f"node-{rank}", **others}
        self.members.append(
            subprocess.Popen(
                [sys.executable, "-m", "distbench", *words],
                env={**os.environ, **told},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.members[-1]

    def control(self, **options: object):
        """Become the controller; return the launcher."""
        launcher = registry.create_plugin(
            "launchers", PluginChoice("env", {"start_timeout": 20.0, **options})
        )
        assert launcher.option_problem() is None
        assert self._stack.enter_context(launcher.join(self.folder / "out")) is None
        return launcher

    def end(self) -> None:
        """End the command of the controller."""
        self._stack.close()

    def close(self) -> None:
        """End all processes."""
        self.end()
        for member in self.members:
            member.kill()
            member.communicate()


@pytest.fixture
def job(tmp_path, monkeypatch, chore) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def start(**variables: str) -> Job:
        for name, value in {**placed(0, 2), **variables, "DISTBENCH_NODE": "node-0"}.items():
            monkeypatch.setenv(name, value)
        made.append(Job(tmp_path, variables))
        return made[-1]

    yield start
    for each in made:
        each.close()


def free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("way", ["file", "token"])
def test_the_first_process_of_each_node_serves_every_session_and_ends_with_the_command(tmp_path, job, way):
    told = {"DISTBENCH_TOKEN": new_token(), "MASTER_ADDR": "localhost"} if way == "token" else {}
    options = {"port": free_port()} if told else {}
    joined = job(**told)
    suite_options = f"{JOINED[:-3]}, port: {options['port']}}}}}\n" if told else JOINED
    (tmp_path / "suite.yaml").write_text(suite_options)
    member = joined.start_member()
    launcher = joined.control(**options)
    for number in range(2):
        with closing(launcher.open_session(f"run{number}")) as site:
            out = tmp_path / f"{number}-"
            handle = site.launch(launch_of(tmp_path / f"run{number}", f"env > {out}$RANK", 2))
            assert handle.ranks_by_node == {"node-0": [0], "node-1": [1]}
            exits = []
            while len(exits) < 2:
                exits += handle.wait(10)
            handle.stop()
        for rank in range(2):
            environment = dict(
                line.split("=", 1) for line in Path(f"{out}{rank}").read_text().splitlines() if "=" in line
            )
            assert (environment["RANK"], environment["GROUP_RANK"]) == (str(rank), str(rank))
            assert environment["MASTER_PORT"] != "29500"
            assert not {name for name in environment if name.startswith("TORCHELASTIC_")}
            assert TOKEN_VARIABLE not in environment
    assert member.poll() is None
    joined.end()
    assert member.communicate(timeout=10) == ("", "")
    assert member.returncode == 0
    assert not list((tmp_path / "out").glob(".controller-*")), "a token was left"


def test_the_file_of_the_token_is_for_its_user_alone(tmp_path, job):
    joined = job()
    joined.control()
    joined.start_member()
    (file,) = (tmp_path / "out").glob(".controller-*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_others_can_read_is_not_believed(tmp_path, job):
    joined = job()
    joined.control()
    (file,) = (tmp_path / "out").glob(".controller-*.json")
    joined.start_member(LOCAL_WORLD_SIZE="2").communicate(timeout=20)
    file.chmod(0o644)
    (tmp_path / "suite.yaml").write_text(JOINED.replace("20", "1"))
    _, errors = joined.start_member().communicate(timeout=20)
    assert "no controller (rank 0) within 1 s by" in errors
    assert "use a folder (--out) that all nodes share, or set DISTBENCH_TOKEN" in errors


def test_a_file_of_an_earlier_job_is_replaced_and_late_processes_are_waited_for(tmp_path, job):
    joined = job()
    file = AddressFile(tmp_path / "out", read_placement(os.environ).job)
    file.write(ControllerAddress([f"127.0.0.1:{free_port()}"], new_token()))
    member = joined.start_member()
    time.sleep(1)
    joined.control()
    joined.end()
    assert member.communicate(timeout=10) == ("", "")
    assert member.returncode == 0


@pytest.mark.parametrize(
    ("rank", "size", "others", "told"),
    [
        (2, 4, {}, "rank 2 is one of 4 processes, 1 on its node, but rank 0 is one of 2"),
        (1, 2, {"LOCAL_WORLD_SIZE": "2"}, "rank 1 is one of 2 processes, 2 on its node, but rank 0"),
    ],
)
def test_a_process_of_unequal_nodes_is_refused_on_both_sides(tmp_path, job, rank, size, others, told):
    joined = job()
    launcher = joined.control()
    member = joined.start_member(rank, size, **others)
    _, errors = member.communicate(timeout=20)
    assert (member.returncode, told in errors) == (4, True), errors
    with closing(launcher.open_session("run")) as site, pytest.raises(LaunchError, match=told):
        site.launch(launch_of(tmp_path / "run", "true", 2))


def test_two_processes_of_one_rank_are_refused(tmp_path, job):
    joined = job()
    joined.control()
    first = joined.start_member()
    soon(lambda: psutil.Process(first.pid).net_connections(), "it did not connect")
    _, errors = joined.start_member().communicate(timeout=20)
    assert "two processes have rank 1; does another job use this folder of runs?" in errors
    assert first.poll() is None


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"no JSON", "invalid message: not JSON"),
        (b'{"type": "StopLaunch"}', "a message StopLaunch in place of"),
    ],
)
def test_a_process_that_does_not_say_its_place_is_a_problem_of_the_job(first, told):
    token = new_token()
    with closing(NodeLeaders(read_placement(placed(0, 2)), token)) as leaders:
        (loopback,) = [each for each in leaders.address().addresses if each.startswith("127.0.0.1:")]
        channel = connect_to_controller([loopback], token)
        send_encoded(channel, first)
        soon(leaders.problem, "nothing was told")
        channel.close()
        assert str(leaders.problem()).startswith(f"the first process on 127.0.0.1: {told}")


def agents_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Agents that *process* keeps."""
    return psutil.Process(process.pid).children()


def test_a_process_that_dies_is_named_and_none_of_its_ranks_is_left(tmp_path, job, nap):
    joined = job()
    member = joined.start_member()
    launcher = joined.control()
    with closing(launcher.open_session("run")) as site:
        handle = site.launch(launch_of(tmp_path / "run", f"sleep {nap}", 2))
        soon(lambda: len(sleepers(nap)) == 2, "they never began", 30)
        member.kill()
        with pytest.raises(LaunchError, match="lost the agent on node-1"):
            while True:
                handle.wait(10)
        soon(lambda: not sleepers(nap), "a rank was left")
        with pytest.raises(
            LaunchError, match="the process of rank 1, which keeps the agent of its node, has"
        ):
            site.launch(launch_of(tmp_path / "run", "true", 2))


def test_nobody_is_left_when_the_controller_is_gone(tmp_path, job, nap):
    joined = job()
    member = joined.start_member()
    code = CONTROLLER.format(folder=str(tmp_path), nap=nap)
    path = f"{Path(__file__).parents[2]}:{Path(__file__).parents[3]}"
    controller = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        soon(lambda: len(sleepers(nap)) == 2, "they never began", 30)
        agents = agents_of(member)
        assert len(agents) == 1
    finally:
        controller.kill()
        controller.wait()
    _, errors = member.communicate(timeout=10)
    assert (member.returncode, "lost the controller (rank 0)" in errors) == (4, True), errors
    soon(lambda: not (sleepers(nap) or [each for each in agents if each.is_running()]), "a process was left")


CONTROLLER = """
import pathlib
from distbench.launchers.env import Env
from support.shell_jobs import launch_of
launcher = Env(start_timeout=20.0)
folder = pathlib.Path({folder!r})
with launcher.join(folder / "out"):
    handle = launcher.open_session("run").launch(launch_of(folder / "run", "sleep {nap}", 2))
    while True:
        handle.wait(10)
"""


def test_a_launcher_that_ends_all_leaves_the_controller_time_for_its_trial(tmp_path, job):
    joined = job()
    member = joined.start_member()
    launcher = joined.control()
    with closing(launcher.open_session("run")) as site:
        handle = site.launch(launch_of(tmp_path / "run", "sleep 1", 2))
        member.send_signal(signal.SIGTERM)
        assert set(codes(handle)) == {0}
    joined.end()
    member.communicate(timeout=10)
    assert member.returncode == 0


def test_the_port_of_the_controller_may_be_taken(tmp_path, job):
    joined = job(DISTBENCH_TOKEN=new_token())
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InfrastructureError, match=rf"on port {port}: .*; set launcher.env.port"):
            joined.control(port=port)


def torchrun(suite: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run *suite* by torchrun, with two processes on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, "-m", "distbench", "run", str(suite), "--out", str(out)],
        cwd=MODELS,
        env={**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.train
def test_ranks_of_torchrun_train_as_those_of_the_launcher_local(tmp_path):
    text = f"{QUICK}strategies: [ddp]\n"
    near = run_in(tmp_path, text)
    done = torchrun(write_suite(tmp_path, f"{text}launcher: env\n", "env.yaml"), tmp_path / "far")
    assert done.returncode == 0, done.stderr
    # of one of the processes
    assert done.stdout.count("report: ") == 1
    (folder,) = (tmp_path / "far").iterdir()
    losses = [each.record("ddp")["samples"]["loss"] for each in (near, Finished(0, "", {}, folder))]
    assert losses[0] == losses[1]


@pytest.mark.train
def test_torchrun_without_the_launcher_ends_with_the_advice(tmp_path):
    done = torchrun(write_suite(tmp_path, PRETENDED), tmp_path / "out")
    assert done.returncode == 1
    assert f"error: RANK = 1, WORLD_SIZE = 2: {REFUSED}" in done.stderr
