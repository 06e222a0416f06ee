"""A Ray of one node with its dashboard: what it takes as a job runs there, is followed and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distbench.launchers.ray.jobs import RayQueue
from distbench.record.record_reader import read_record
from distbench.record.run_folder import Run
from distbench.record.submission import read_submitted_job
from support import leftover_processes
from support.runs import QUICK, call_outside
from support.shell_jobs import soon

SUITE = f"{QUICK}strategies: [ddp]\nlauncher: {{ray: {{start_timeout: 900}}}}\n"
# all that listens, so that several clusters can stand side by side
_PORTS = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
_PATIENCE_S = 180.0


def _free_ports(count: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The cluster; the variables with which Ray finds it."""
    # the paths of its sockets have at most 107 characters, so it is not below pytest's own
    folder, log = Path(tempfile.mkdtemp(prefix="ray-")), tmp_path_factory.mktemp("ray") / "log"
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    given = [f"--{name}={port}" for name, port in ports.items()]
    sizes = ["--num-cpus=2", "--num-gpus=0", "--object-store-memory=80000000"]
    where = ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--head", "--block", "--disable-usage-stats"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with log.open("wb") as output:
        head = subprocess.Popen(
            [*command, *where, *given, *sizes], env=environment, stdout=output, stderr=output
        )
    variables = {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}", "RAY_API_SERVER_ADDRESS": ""}
    try:
        http = f"http://127.0.0.1:{ports['dashboard-port']}"
        soon(
            lambda: _takes_jobs(http, head),
            f"Ray does not start: {log}",
            _PATIENCE_S,
        )
        yield variables
    finally:
        family = [head, *psutil.Process(head.pid).children(recursive=True)]
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(30)
        except subprocess.TimeoutExpired:
            head.kill()
        for each in family[1:]:
            if each.is_running():
                each.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _takes_jobs(url: str, head: subprocess.Popen[bytes]) -> bool:
    assert head.poll() is None, "Ray has ended"
    job = RayQueue().query(f"nobody@{url}")
    return job is not None and job.state_text == "no longer known to Ray"


@pytest.fixture
def submit(tmp_path: Path, cluster: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Hands a suite to Ray."""

    def run(*arguments: str, text: str = SUITE) -> subprocess.CompletedProcess[str]:
        suite = tmp_path / "a suite.yaml"
        suite.write_text(text)
        out = str(tmp_path / 'out "of" 100%')
        return call_outside("run", str(suite), "--on", "ray", "--out", out, *arguments, **cluster)

    return run


def only_run(folder: Path) -> Path:
    (run,) = (folder / 'out "of" 100%').iterdir()
    return run


def test_a_job_measures_and_its_table_is_printed_here(
    submit: Callable[..., subprocess.CompletedProcess[str]], cluster: dict[str, str], tmp_path: Path
) -> None:
    done = submit()
    assert done.returncode == 0, done.stderr
    assert "[1/1] ddp/ws2/mb4/fp32 round 1: " in done.stderr
    assert "ddp" in done.stdout and "tokens/s" in done.stdout
    run = only_run(tmp_path)
    (file,) = run.glob("trials/*/0/record.json")
    assert list(read_record(file).record.nodes.values()) == [[0, 1]]
    job = read_submitted_job(run)
    assert job
    assert (job.launcher, job.nodes) == ("ray", 0)
    again = call_outside("attach", str(run), **cluster)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    resumed = call_outside("run", "--resume", str(run), "--on", "ray", "--nodes", "1", "--json", **cluster)
    assert (resumed.returncode, json.loads(resumed.stdout)["report"]) == (0, str(run / "report.html"))


def test_what_the_job_refuses_ends_the_command_likewise(
    submit: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = submit("--only", "nothing")
    assert done.returncode == 2, done.stderr
    assert "only[0] = 'nothing': matches no case" in done.stderr


def test_a_job_that_is_cancelled_leaves_a_run_that_can_be_resumed(
    submit: Callable[..., subprocess.CompletedProcess[str]], cluster: dict[str, str], tmp_path: Path
) -> None:
    text = SUITE.replace("steps: 3", "steps: 1000000").replace("limits: {step: 30}", "limits: {trial: 3000}")
    done = submit("--detach", text=text)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    soon(lambda: list(run.glob("trials/*/0/rank*.log")), "no trial began", _PATIENCE_S)
    run_id = run.name.rpartition("-")[2]
    soon(lambda: leftover_processes.alive(run_id), "no rank began", _PATIENCE_S)
    ranks = [psutil.Process(pid) for pid in leftover_processes.alive(run_id)]
    assert {each.nice() for each in ranks} == {0}, "as with other launchers"
    ended = call_outside("attach", str(run), "--cancel", **cluster)
    assert ended.returncode == 130, ended.stderr
    assert "ended: STOPPED; resume with: distbench run --resume" in ended.stderr
    assert Run(run).info().state == "interrupted"
    soon(lambda: not leftover_processes.alive(run_id), "a process was left", 30)
