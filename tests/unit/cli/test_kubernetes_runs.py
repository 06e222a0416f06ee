"""Runs that are submitted to Kubernetes: what is created, shown, refused and left; no pod runs.

Pods that run: tests/cluster/test_pods.py.
"""

import base64
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from support.fake_kubernetes import FakeCluster
from support.runs import MODELS, PLUGINS, QUICK, Done
from support.suites import write_suite

OPTIONS = {"image": "registry.example/distbench:1", "resources": {"requests": {"cpu": 1}}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
PENDING = {
    "kind": "Pod",
    "metadata": {
        "name": "c",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"distbench/role": "controller"},
    },
    "spec": {"containers": [{"image": OPTIONS["image"]}]},
    "status": {"phase": "Pending", "conditions": [UNSCHEDULED]},
}


class Laptop:
    """A machine with kubectl and a suite."""

    def __init__(self, folder: Path, distbench: Callable[..., Done]) -> None:
        self.out, self._distbench = folder / "out", distbench
        self.cluster = FakeCluster(folder / "cluster")
        self.cluster.say(PENDING)
        self.suite = write_suite(folder, f"{QUICK}strategies: [pretended]\n")

    def run(self, *arguments: str, **options: Any) -> Done:
        """Submit the suite, with further *options* of the launcher."""
        launcher = f"launcher={json.dumps({'kubernetes': {**OPTIONS, **options}})}"
        asked = ["--on", "kubernetes", "--nodes", "2", "--out", str(self.out), "--set", launcher]
        return self._distbench("run", str(self.suite), *asked, *arguments)

    @property
    def runs(self) -> list[Path]:
        return sorted(self.out.iterdir()) if self.out.exists() else []


@pytest.fixture
def laptop(tmp_path, monkeypatch, distbench) -> Laptop:
    laptop = Laptop(tmp_path, distbench)
    monkeypatch.setenv("PATH", str(laptop.cluster.bin), prepend=":")
    return laptop


def created(laptop: Laptop, kind: str) -> list[dict[str, Any]]:
    return [each for each in laptop.cluster.created if each["kind"] == kind]


def test_a_submitted_run_has_its_folder_here_and_all_but_the_token_of_its_objects(laptop):
    done = laptop.run("--detach", "--set", "measure.steps=2")
    assert done.returncode == 0, done.stderr
    (run,) = laptop.runs
    (secret,) = created(laptop, "Secret")
    name = secret["metadata"]["name"]
    assert f"submitted job default/job/{name} to kubernetes; run folder: {run}" in done.stderr
    remove = (
        f"kubectl --namespace=default delete jobs,services,secrets,configmaps --selector=distbench/run={name}"
    )
    assert f"follow it with: distbench attach {run}; cancel it with: {remove}" in done.stderr
    stored = (run / "submitted" / f"{name}.yaml").read_text()
    assert secret["stringData"]["token"] not in stored
    assert len([*YAML(typ="safe").load_all(stored)]) == 5
    assert not [
        file
        for file in run.rglob("*")
        if file.is_file() and secret["stringData"]["token"] in file.read_text()
    ]


def test_the_pod_begins_the_run_where_it_is_here_with_the_options_of_this_submission(laptop):
    laptop.run("--detach", "--set", "measure.steps=2", "--until-settled", keep=60)
    (run,) = laptop.runs
    (config,) = created(laptop, "ConfigMap")
    assert config["data"]["suite.yaml"] == laptop.suite.read_text()
    request = json.loads(config["data"]["request.json"])
    assert request["run_id"] == run.name.rpartition("-")[2]
    assert "measure.steps=2" in request["set"]
    (job,) = [
        each
        for each in created(laptop, "Job")
        if each["metadata"]["labels"]["distbench/role"] == "controller"
    ]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "reports", "mountPath": str(laptop.out)} in container["volumeMounts"]
    sh, c, _, keep, *command = container["command"]
    assert (sh, c, keep) == ("sh", "-c", "60")
    assert command[command.index("distbench") + 1 : -2] == [
        "run",
        "--resume",
        str(run),
        "--quiet",
        "--until-settled",
    ]
    launcher = json.loads(command[-1].removeprefix("launcher="))["kubernetes"]
    assert launcher == {**OPTIONS, "nnodes": 2, "keep": 60}


def test_plan_shows_what_a_run_submits(laptop, distbench):
    launcher = f"launcher={json.dumps({'kubernetes': OPTIONS})}"
    asked = ["--on", "kubernetes", "--nodes", "2", "--out", str(laptop.out), "--set", launcher]
    done = distbench("plan", str(laptop.suite), *asked, "--json")
    shown = json.loads(done.stdout)["submission"]
    assert shown["command"][:2] == ["kubectl", "create"]
    assert sorted(shown) == ["command", "text"]
    written = list(YAML(typ="safe").load_all(shown["text"]))
    assert [each["kind"] for each in written] == ["Secret", "ConfigMap", "Service", "Job", "Job"]
    assert f"distbench attach {laptop.out}/RUN" in shown["text"]


@pytest.mark.parametrize(
    ("refused", "objects"), [("Secret", 0), ("Job", 0)], ids=["the first object", "one of the last"]
)
def test_nothing_is_left_of_a_run_that_is_refused(laptop, refused, objects):
    laptop.cluster.refuse(refused, 'jobs.batch is forbidden: User "me" cannot create resource')
    done = laptop.run()
    told = 'kubectl refused: Error from server (Forbidden): jobs.batch is forbidden: User "me" cannot create'
    assert (done.returncode, told in done.stderr, laptop.runs) == (4, True, [])
    assert "--print shows what it got" in done.stderr
    assert len(laptop.cluster.created) == objects
    deleted = [call for call in laptop.cluster.calls if "delete" in call]
    assert len(deleted) == (refused == "Job")


def test_without_kubectl_a_run_says_so_in_one_line(laptop, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = laptop.run()
    told = (
        "kubectl: can't be started: No such file or directory; install kubectl or use a machine that has it"
    )
    assert (done.returncode, laptop.runs) == (4, [])
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_a_run_waits_for_is_shown_and_ctrl_c_leaves_it_alone(laptop):
    laptop.run("--detach")
    (run,) = laptop.runs
    command = [sys.executable, "-m", "distbench", "attach", str(run)]
    variables = {**os.environ, PLUGIN_PATH_VARIABLE: PLUGINS}
    follower = subprocess.Popen(command, cwd=MODELS, env=variables, stderr=subprocess.PIPE, text=True)
    assert follower.stderr
    assert follower.stderr.readline().endswith(": Pending (Unschedulable: no room)\n")
    follower.send_signal(signal.SIGINT)
    _, told = follower.communicate()
    assert (follower.returncode, f"continues; follow it with: distbench attach {run}" in told) == (130, True)
    assert not [call for call in laptop.cluster.calls if "delete" in call]


def test_a_run_that_waits_can_be_cancelled(laptop, distbench):
    laptop.run("--detach")
    (run,) = laptop.runs
    refused = distbench("run", "--resume", str(run), "--on", "kubernetes", "--nodes", "2")
    assert (refused.returncode, "already submitted as job" in refused.stderr) == (2, True)
    laptop.cluster.say()
    done = distbench("attach", str(run), "--cancel")
    assert (done.returncode, laptop.cluster.created) == (4, [])
    assert "ended: not found in the namespace and the context of kubectl; resume with" in done.stderr
    assert f"{run}: not all of the run could be fetched" in done.stderr


@pytest.mark.parametrize(
    ("options", "arguments", "told"),
    [
        ({"keep": 0}, [], "launcher.kubernetes.keep = 0: the folder of a run is fetched after it"),
        ({"image": ""}, [], "launcher.kubernetes.image: needs an image"),
        ({}, ["--try"], "--try: the run that it adds can't be fetched from a pod"),
        ({}, ["--out", "a:b"], "the path of a mount has no colon; choose another folder"),
    ],
)
def test_what_makes_no_run_in_a_pod_is_refused(laptop, options, arguments, told):
    done = laptop.run(*arguments, **options)
    assert (done.returncode, told in done.stderr, laptop.runs) == (2, True, []), done.stderr
    assert laptop.cluster.calls == []


@pytest.fixture
def interrupted(laptop) -> Path:
    """The folder of a run whose pod is gone, after it was fetched in part."""
    assert laptop.run("--detach").returncode == 0
    (run,) = laptop.runs
    laptop.cluster.say()
    (run / "run.json").write_text("{}")
    (run / "trials").mkdir()
    return run


def resume(run: Path, distbench: Callable[..., Done], **options: Any) -> Done:
    settings = [
        word for key, value in options.items() for word in ("--set", f"launcher.kubernetes.{key}={value}")
    ]
    return distbench("run", "--resume", str(run), "--on", "kubernetes", "--nodes", "3", "--detach", *settings)


def test_a_resumed_run_takes_along_what_it_has_stored(laptop, interrupted, distbench):
    done = resume(interrupted, distbench, image="other:2")
    assert done.returncode == 0, done.stderr
    config = max(created(laptop, "ConfigMap"), key=lambda each: "binaryData" in each)
    packed = BytesIO(base64.b64decode(config["binaryData"]["run.tar.gz"]))
    with tarfile.open(fileobj=packed) as archive:
        assert "./run.json" in archive.getnames()
        assert not [name for name in archive.getnames() if "submitted" in name]
    assert "data" not in config
    name = config["metadata"]["name"]
    (job,) = [each for each in created(laptop, "Job") if each["metadata"]["name"] == f"{name}-controller"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    launcher = json.loads(container["command"][-1].removeprefix("launcher="))["kubernetes"]
    assert (launcher["nnodes"], container["image"]) == (3, "other:2")


def test_what_does_not_fit_into_an_object_is_refused_without_a_claim(laptop, interrupted, distbench):
    (interrupted / "trials" / "samples.parquet").write_bytes(os.urandom(1_100_000))
    done = resume(interrupted, distbench)
    assert done.returncode == 2
    assert "an object of Kubernetes takes 977 KiB; put the folder into a claim" in done.stderr
    done = resume(interrupted, distbench, claim="reports")
    assert done.returncode == 0, done.stderr
    assert not [each for each in created(laptop, "ConfigMap") if "binaryData" in each]


def test_a_folder_with_a_space_is_quoted_for_the_shell_of_the_pod(laptop, tmp_path):
    out = tmp_path / "my 'runs'"
    assert laptop.run("--detach", "--out", str(out)).returncode == 0
    (run,) = out.iterdir()
    (job,) = [
        each
        for each in created(laptop, "Job")
        if each["metadata"]["labels"]["distbench/role"] == "controller"
    ]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert shlex.quote(str(run)) in container["command"][2]
    checked = subprocess.run(["sh", "-n", "-c", container["command"][2]], check=False, capture_output=True)
    assert checked.returncode == 0, checked.stderr
