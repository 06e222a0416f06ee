"""Ray: what its dashboard takes as jobs is followed, left alone and ended (on a real one: tests/cluster)."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distbench.core.errors import UsageError
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.launchers.base import QueuedJob
from distbench.launchers.ray.jobs import RayQueue
from support.fake_ray import FakeRay
from support.runs import MODELS, PLUGINS, QUICK, Done
from support.suites import write_suite

SUITE = f"{QUICK}strategies: [pretended]\n"
# what the controller asks of the cluster; no agent can be started there
RAY = """
import types
def init(address, **_): return types.SimpleNamespace(dashboard_url="")
def nodes(): return [{"Alive": True, "Resources": {"CPU": 2.0}}] * 3
"""


@pytest.fixture
def ray(tmp_path, monkeypatch) -> Iterator[Callable[..., FakeRay]]:
    """Makes the cluster that the environment names."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "ray.py").write_text(RAY)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "no token"))
    made: list[FakeRay] = []

    def start(**options: bool) -> FakeRay:
        made.append(FakeRay(**options))
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", made[-1].url)
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def submit(tmp_path, distbench) -> Callable[..., Done]:
    """Hands a suite to Ray."""

    def run(*arguments: str, text: str = SUITE) -> Done:
        suite = write_suite(tmp_path, text, "a suite.yaml")
        return distbench("run", str(suite), "--on", "ray", "--out", str(tmp_path / "o ut"), *arguments)

    return run


def only_run(folder: Path) -> Path:
    (run,) = (folder / "o ut").iterdir()
    return run


def test_a_run_that_a_cluster_has_taken_is_followed_to_its_end(ray, submit, distbench, tmp_path):
    cluster = ray()
    done = submit("--set", "measure.steps=2")
    run, (number, job) = only_run(tmp_path), cluster.only_job()
    assert f"submitted job {number}@{cluster.url} to ray; run folder: {run}" in done.stderr
    assert done.returncode == 4, done.stderr
    assert "the Ray driver exited with code 1" in done.stderr, "what the job has printed"
    info = json.loads((run / "run.json").read_text())
    assert (info["state"], list(info["suite"]["launcher"])) == ("interrupted", ["ray"])
    assert info["suite"]["measure"]["steps"] == 2
    assert (run / "submitted" / f"{number}.sh").read_text() == job.request["entrypoint"]
    again = distbench("attach", str(run))
    assert (again.returncode, again.stdout) == (4, done.stdout)
    assert "the Ray driver exited with code 1" in again.stderr, "how it ended is said again"
    resumed = distbench("run", "--resume", str(run), "--on", "ray", "--nodes", "3", "--retry-failed")
    assert resumed.returncode == 4
    _, later = cluster.jobs.values()
    assert "export DISTBENCH_RAY_NODES=3\n" in later.request["entrypoint"]


def test_what_the_job_refuses_is_told_here(ray, submit):
    ray()
    done = submit("--only", "nothing")
    assert done.returncode == 2
    assert "only[0] = 'nothing': matches no case" in done.stderr
    assert "resume with" not in done.stderr


@pytest.mark.parametrize(
    ("asked", "launcher", "slots"), [([], "", 6), (["--nodes", "2"], "launcher: {ray: {nnodes: 1}}\n", 4)]
)
def test_the_nodes_that_are_asked_for_are_those_of_the_job(ray, submit, monkeypatch, asked, launcher, slots):
    # on Ray, also where Ray is in an allocation of Slurm
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    ray()
    done = submit(*asked, text=f"{SUITE.replace('[2]', '[7]')}{launcher}")
    assert f"7 ranks need 7 slots, but the nodes have {slots} " in done.stderr


def test_what_is_handed_over_is_what_was_shown(ray, distbench, tmp_path, monkeypatch):
    cluster, suite = ray(is_holding=True), write_suite(tmp_path, SUITE, "it's a suite.yaml")
    monkeypatch.setenv("DISTBENCH_CACHE", "/a cache")
    asked = ["launch", str(suite), "--on", "ray", "--nodes", "4", "--set", "measure.steps=5"]
    shown = distbench(*asked, "--print").stdout
    assert not cluster.jobs
    done = distbench(*asked)
    number, job = cluster.only_job()
    assert (done.returncode, done.stdout) == (0, f"{number}@{cluster.url}\n")
    assert number.startswith("distbench-it-s-a-suite-")
    assert job.request["entrypoint"] == shown
    assert job.request["runtime_env"] == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}
    lines = shown.splitlines()
    assert lines[:4] == ["#!/bin/sh", "set -e", f"cd {MODELS}", "export DISTBENCH_CACHE='/a cache'"]
    assert "export DISTBENCH_RAY_NODES=4" in lines
    start = f"exec {sys.executable} -P -m distbench run {shlex.quote(str(suite))}"
    assert lines[-1] == f"{start} --out reports --set measure.steps=5"


def test_plan_shows_the_request_and_the_script(ray, distbench, tmp_path):
    cluster, suite = ray(), write_suite(tmp_path, f"{SUITE}launcher: {{ray: {{address: 'a:1'}}}}\n")
    asked = ["plan", str(suite), "--on", "ray", "--out", str(tmp_path)]
    shown = json.loads(distbench(*asked, "--json").stdout)["submission"]
    request = json.loads(shown["command"][-1])
    number = request["job"]["submission_id"]
    assert (request["address"], cluster.jobs) == ("a:1", {})
    logs = f"{tmp_path}/RUN/submitted/{number}"
    assert shown["text"].endswith(f" run --resume {tmp_path}/RUN --quiet > {logs}.out 2> {logs}.err\n")


def test_a_job_that_waits_says_so_is_left_alone_and_ended(ray, submit, distbench, tmp_path):
    cluster = ray(is_holding=True)
    done, run = submit("--detach"), only_run(tmp_path)
    number, job = cluster.only_job()
    stop = f"{sys.executable} -P -m distbench.launchers.ray.dashboard stop {number}@{cluster.url}"
    assert (done.returncode, f"; cancel it with: {stop}\n" in done.stderr) == (0, True)
    command = [sys.executable, "-m", "distbench", "attach", str(run)]
    variables = {**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS}
    follower = subprocess.Popen(command, cwd=MODELS, env=variables, stderr=subprocess.PIPE, text=True)
    assert follower.stderr
    assert follower.stderr.readline() == f"job {number}@{cluster.url}: PENDING (Job has not started yet.)\n"
    follower.send_signal(signal.SIGINT)
    follower.communicate()
    assert (follower.returncode, job.told) == (130, {})
    refused = distbench("run", "--resume", str(run), "--on", "ray")
    assert (refused.returncode, "already submitted as job" in refused.stderr) == (2, True)
    ended = distbench("attach", str(run), "--cancel")
    assert (ended.returncode, job.details()["status"]) == (4, "STOPPED")
    resume = f"distbench run --resume {shlex.quote(str(run))} --on ray"
    assert f"job {number}@{cluster.url} ended: STOPPED; resume with: {resume}\n" in ended.stderr
    cluster.refusal = (500, "Traceback (most recent call last):\n  ...\nRuntimeError: no agent\n")
    failed = distbench("attach", str(run), "--cancel")
    assert failed.returncode == 4
    why = f"{cluster.url}: HTTP 500: RuntimeError: no agent"
    assert f"job {number}@{cluster.url} can't be cancelled: {why}" in failed.stderr


@pytest.mark.parametrize(
    ("told", "job"),
    [
        ({"status": "RUNNING", "message": "Job is currently running."}, QueuedJob("running", "RUNNING")),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, QueuedJob("ended", "SUCCEEDED", 0)),
        ({"status": "FAILED", "driver_exit_code": 2, "message": "a\nb"}, QueuedJob("ended", "FAILED", 2)),
        ({"status": "FAILED", "driver_exit_code": -9}, QueuedJob("ended", "FAILED", 137)),
        (
            {"status": "FAILED", "message": "\nRuntime env:\n\x1b[1mno pip"},
            QueuedJob("ended", "FAILED (Runtime env:)"),
        ),
    ],
)
def test_the_state_of_a_job_is_in_rays_words(ray, distbench, tmp_path, told, job):
    cluster = ray(is_holding=True)
    name = distbench("launch", str(write_suite(tmp_path, SUITE)), "--on", "ray").stdout.strip()
    cluster.only_job()[1].told = told
    assert RayQueue().query(name) == job


def test_a_job_of_a_cluster_that_was_started_again_has_ended(ray):
    cluster = ray()
    assert RayQueue().query(f"gone@{cluster.url}") == QueuedJob("ended", "no longer known to Ray")
    cluster.refusal = (503, "")
    assert RayQueue().query(f"gone@{cluster.url}") is None


@pytest.mark.parametrize("name", ["17", "../x@http://a:1", "a@file:///etc/b", "a@http://a@b", "a@http://a b"])
def test_what_is_no_job_is_asked_of_nobody(name, tmp_path):
    queue = RayQueue()
    for use in (queue.query, queue.cancel_command, lambda name: queue.log_files(name, tmp_path)):
        with pytest.raises(UsageError, match="not a Ray job, such as ID@http://HEAD:8265"):
            use(name)


def test_a_dashboard_that_does_not_answer_is_named_with_a_remedy(ray, submit, tmp_path):
    cluster = ray()
    cluster.close()
    done = submit()
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert f"Ray refused: {cluster.url}: no Ray dashboard answers: " in line
    assert line.endswith("installed, and --dashboard-host=0.0.0.0 to use it from other hosts")
    assert list((tmp_path / "o ut").iterdir()) == []


def test_a_cluster_without_a_dashboard_is_told_apart_from_none(ray, submit, monkeypatch, tmp_path):
    ray()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    told = "Ray refused: the Ray cluster has no dashboard, which takes jobs; install ray[default] on its head"
    assert told in submit().stderr
    (tmp_path / "packages" / "ray.py").write_text("def init(address, **_): raise ConnectionError('nobody')")
    done = submit(text=f"{SUITE}launcher: {{ray: {{address: 'a:1'}}}}\n")
    told = (
        "no Ray cluster answers at a:1: ConnectionError: nobody; set RAY_API_SERVER_ADDRESS=http://HEAD:8265"
    )
    assert (done.returncode, f"Ray refused: {told}" in done.stderr) == (4, True), done.stderr


def test_the_token_goes_to_the_cluster_of_the_environment_alone(ray, submit, monkeypatch, tmp_path):
    cluster = ray(is_holding=True)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    submit("--detach")
    assert cluster.headers[-1]["Authorization"] == "Bearer secret"
    # another name of this machine
    other = cluster.url.replace("127.0.0.1", "127.0.0.2")
    (number,) = cluster.jobs
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.3:6379")
    RayQueue().query(f"{number}@{other}")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:6379")
    RayQueue().query(f"{number}@{other}")
    assert ["Authorization" in sent for sent in cluster.headers[-2:]] == [False, True]
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", other)
    cluster.refusal = (401, "Unauthorized")
    told = f"Ray wants its token: set RAY_AUTH_TOKEN, and RAY_API_SERVER_ADDRESS={other}"
    assert told in submit("--detach").stderr
