"""Runs in pods of a Kubernetes that is played on this machine, from their submission to the report."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record.run_folder import Run
from support.fake_kubernetes import FakeCluster
from support.runs import MODELS, PLUGINS, QUICK, Distbench
from support.shell_jobs import soon
from support.suites import SuiteText

SUITE = SuiteText(f"{QUICK}strategies: [ddp]\n")
HELD = """
import time
from pathlib import Path
from small import Small

class Held(Small):
    def forward(self, *arguments):
        while Path("{file}").exists():
            time.sleep(0.05)
        return super().forward(*arguments)
"""
LONG = SUITE.replace("trials: 1", "trials: 3")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    cluster = FakeCluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", str(cluster.bin), prepend=":")
    monkeypatch.delenv("DISTBENCH_TOKEN", raising=False)
    yield cluster
    cluster.end()


@pytest.fixture
def submit(tmp_path: Path, cluster: FakeCluster) -> Callable[..., list[str]]:
    """The command that submits a suite for two nodes, with a port that is free."""

    def words(text: str, *arguments: str, **options: Any) -> list[str]:
        (tmp_path / "suite.yaml").write_text(text)
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        chosen = {
            "image": "a",
            "resources": {"requests": {"cpu": 1}},
            "port": port,
            "may_differ": ["memory_bytes"],
            **options,
        }
        launcher = f"launcher={json.dumps({'kubernetes': chosen})}"
        asked = ["--on", "kubernetes", "--nodes", "2", "--set", launcher, "--out", str(tmp_path / "out")]
        return ["run", str(tmp_path / "suite.yaml"), *asked, *arguments]

    return words


def only_run(folder: Path) -> Path:
    (run,) = (folder / "out").iterdir()
    return run


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_a_run_in_pods_ends_with_its_folder_here_and_nothing_there(
    cluster: FakeCluster, submit: Callable[..., list[str]], distbench: Distbench, tmp_path: Path, kind: str
) -> None:
    done = distbench(*submit(SUITE, kind=kind))
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert "[1/1] ddp/ws2/mb4/fp32 round 1: " in done.stderr
    assert "ddp" in done.stdout
    assert f"report: {run}/report.html" in done.stdout
    (record,) = Run(run).records()
    assert record.nodes == {"node-a": [0], "node-b": [1]}
    assert {"run.json", "report.html", "progress.jsonl", "suite.yaml"} <= {
        file.name for file in run.iterdir()
    }
    assert distbench("check", str(run)).returncode == 0
    assert cluster.created == []
    soon(lambda: not cluster.pods, "a pod was left", 60)
    again = distbench("attach", str(run))
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_what_the_pod_refuses_is_told_here(
    cluster: FakeCluster, submit: Callable[..., list[str]], distbench: Distbench
) -> None:
    done = distbench(*submit(SUITE, "--only", "nothing"))
    assert done.returncode == 2
    assert "--only nothing: only[0] = 'nothing': matches no case" in done.stderr
    assert "resume with" not in done.stderr
    assert cluster.created == []


def test_a_follower_that_leaves_comes_again(
    cluster: FakeCluster, submit: Callable[..., list[str]], distbench: Distbench, tmp_path: Path
) -> None:
    variables = {**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS}
    command = [sys.executable, "-m", "distbench", *submit(LONG, "--json")]
    follower = subprocess.Popen(
        command, cwd=MODELS, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert follower.stderr
    lines = iter(follower.stderr.readline, "")
    assert any(line.startswith("[1/3] ddp") for line in lines)
    follower.send_signal(signal.SIGINT)
    _, told = follower.communicate()
    run = only_run(tmp_path)
    assert (follower.returncode, f"continues; follow it with: distbench attach {run}" in told) == (130, True)
    assert len(cluster.pods) == 3
    done = distbench("attach", str(run))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["report"] == str(run / "report.html")
    assert len(Run(run).records()) == 3


def test_a_pod_that_is_lost_is_told_and_the_run_goes_on_in_another_one(
    cluster: FakeCluster,
    submit: Callable[..., list[str]],
    distbench: Distbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold = tmp_path / "hold"
    (tmp_path / "held.py").write_text(HELD.format(file=hold))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    suite = LONG.replace("small:Small", "held:Held").replace("step: 30", "step: 600")
    assert distbench(*submit(suite, "--detach")).returncode == 0
    run = only_run(tmp_path)
    variables = {**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS}
    command = [sys.executable, "-m", "distbench", "attach", str(run)]
    follower = subprocess.Popen(command, cwd=MODELS, env=variables, stderr=subprocess.PIPE, text=True)
    first = f"mounts/*controller*/{run.name}/trials/*/0/record.json"
    soon(lambda: [*cluster.folder.glob(first)], "no trial has ended", 300)
    hold.touch()
    assert follower.stderr
    lines = iter(follower.stderr.readline, "")
    assert any(line.startswith("[1/3] ddp") for line in lines)
    cluster.lose("controller", "OOMKilled")
    _, told = follower.communicate()
    assert follower.returncode == 137, told
    assert "ended: Failed (OOMKilled); resume with: " in told
    assert "not all of the run could be fetched, because its pod does not run any more" in told
    assert {record.round for record in Run(run).records()} in ({0}, {0, 1})
    cluster.end()
    hold.unlink()
    changed = ["--set", "launcher.kubernetes.image=b"]
    done = distbench("run", "--resume", str(run), "--on", "kubernetes", "--nodes", "2", *changed)
    assert done.returncode == 0, done.stderr
    assert {record.round for record in Run(run).records()} == {0, 1, 2}
    info = json.loads((run / "run.json").read_text())
    assert info["suite"]["launcher"]["kubernetes"]["image"] == "b"


def test_a_run_in_a_claim_is_resumed_there(
    cluster: FakeCluster, submit: Callable[..., list[str]], distbench: Distbench, tmp_path: Path
) -> None:
    done = distbench(*submit(SUITE, claim="reports"))
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    (in_claim,) = [each for each in (cluster.folder / "mounts/reports").iterdir() if each.name == run.name]
    (trial,) = in_claim.glob("trials/*/0")
    (trial / "record.json").unlink()
    done = distbench("run", "--resume", str(run), "--on", "kubernetes", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert "[1/1] ddp" in done.stderr
    assert (trial / "record.json").read_text() == (
        run / trial.relative_to(in_claim) / "record.json"
    ).read_text()


def test_doctor_looks_at_the_nodes_of_pods(
    cluster: FakeCluster, submit: Callable[..., list[str]], distbench: Distbench
) -> None:
    _, suite, *asked = submit(SUITE)
    done = distbench("doctor", suite, *asked, "--json")
    assert done.returncode in (0, 1), done.stderr
    (nodes,) = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "nodes"]
    assert "node-a" in nodes["where"] + nodes["what"]
    assert cluster.created == []
