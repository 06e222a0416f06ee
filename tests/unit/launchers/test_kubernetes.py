"""Kubernetes: manifests, and agents that are started as their pods would be.

Strict validation: tox -e cluster.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.suite import load_suite
from support.runs import QUICK
from support.shell_jobs import launch_of
from support.suites import write_suite

OPTIONS = {"image": "registry.example/distbench:1", "nnodes": 2, "resources": {"requests": {"cpu": "2500m"}}}
TEXT = f"""{QUICK}strategies: [pretended]  # "quoted", $HOME, é
launcher: {{kubernetes: {json.dumps(OPTIONS)}}}
"""


@pytest.fixture
def suite(tmp_path, monkeypatch) -> Path:
    for name in ("DISTBENCH_TOKEN", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return write_suite(tmp_path, TEXT, "two-nodes.yaml")


@pytest.fixture
def manifests(suite, distbench) -> Callable[..., list[dict[str, Any]]]:
    """What ``launch --print`` writes with some overrides."""

    def written(*arguments: str) -> list[dict[str, Any]]:
        done = distbench("launch", str(suite), "--on", "kubernetes", "--print", *arguments)
        assert done.returncode == 0, done.stderr
        return list(YAML(typ="safe").load_all(done.stdout))

    return written


def container(manifests: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The container of *role*, in a Job or in a JobSet."""
    jobs = [each["spec"] for each in manifests if each["kind"] == "Job"]
    sets = [each["spec"]["replicatedJobs"] for each in manifests if each["kind"] == "JobSet"]
    jobs += [job["template"]["spec"] for of_one in sets for job in of_one]
    containers = [each for job in jobs for each in job["template"]["spec"]["containers"]]
    (found,) = [each for each in containers if each["name"] == role]
    return found


def variables(manifests: list[dict[str, Any]], role: str, node: str) -> dict[str, str]:
    """Environment that Kubernetes gives the container of *role* on *node*."""
    (secret,) = [each for each in manifests if each["kind"] == "Secret"]
    found = {}
    for each in container(manifests, role)["env"]:
        source = each.get("valueFrom", {})
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == secret["metadata"]["name"]
            found[each["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "spec.nodeName"
            found[each["name"]] = node
        else:
            found[each["name"]] = each["value"]
    return found


def test_the_suite_travels_as_it_was_written_and_the_token_in_the_secret_alone(manifests):
    written = manifests("--set", "measure.steps=3")
    assert [each["kind"] for each in written] == ["Secret", "ConfigMap", "Service", "Job", "Job"]
    assert written[1]["data"] == {"two-nodes.yaml": TEXT}
    token = written[0]["stringData"]["token"]
    assert len(token) == 64
    assert json.dumps(written).count(token) == 1
    assert manifests()[0]["stringData"]["token"] != token


def test_agents_look_for_the_controller_where_its_pod_is(manifests):
    _, _, service, job, agents = manifests("--set", "launcher.kubernetes.port=4000")
    pod = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    told = variables(manifests("--set", "launcher.kubernetes.port=4000"), "agent", "a")
    assert told["DISTBENCH_CONTROLLERS"].startswith(f"{pod['spec']['hostname']}.distbench-two-nodes-")
    assert told["DISTBENCH_CONTROLLERS"].endswith(":4000")
    assert [agents["spec"][key] for key in ("completions", "parallelism", "backoffLimit")] == [2, 2, 0]


def test_a_job_set_gives_the_controller_a_name_by_itself(manifests):
    written = manifests("--set", "launcher.kubernetes.kind=jobset")
    assert [each["kind"] for each in written] == ["Secret", "ConfigMap", "JobSet"]
    name = written[2]["metadata"]["name"]
    assert variables(written, "agent", "a")["DISTBENCH_CONTROLLERS"] == f"{name}-controller-0-0.{name}:17017"


def test_gpus_are_limits_and_ranks(suite, manifests):
    eight = {**OPTIONS, "gpus": 8, "pod": {"nodeSelector": {"gpu": "h200"}}, "env": {"NCCL_DEBUG": "WARN"}}
    written = manifests("--set", f"launcher.kubernetes={json.dumps(eight)}")
    agent = container(written, "agent")
    assert agent["resources"] == {"requests": {"cpu": "2500m"}, "limits": {"nvidia.com/gpu": 8}}
    assert variables(written, "agent", "a")["NCCL_DEBUG"] == "WARN"
    assert written[4]["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h200"}
    machine = registry.create_plugin("launchers", PluginChoice("kubernetes", eight)).machine("auto")
    assert (machine.device, machine.devices, machine.nodes) == ("cuda", 16, 2)
    machine = registry.create_plugin("launchers", PluginChoice("kubernetes", OPTIONS)).machine("auto")
    assert (machine.device, machine.devices, machine.nodes) == ("cpu", 4, 2)


def test_the_pod_of_the_controller_runs_the_suite_with_what_was_overridden(tmp_path, manifests, distbench):
    given = ["--set", "name=$(HOME)", "--set", f"launcher.kubernetes={json.dumps(OPTIONS)}", "--nodes", "3"]
    written = manifests(*given, "--only", "pre*")
    # Kubernetes' own escape (https://kubernetes.io/docs/tasks/inject-data-application)
    command = [word.replace("$$(", "$(") for word in container(written, "controller")["command"]]
    run = command[command.index("distbench") + 1 :]
    assert run[:4] == ["run", "/suite/two-nodes.yaml", "--out", "/reports"]
    asked = json.loads(distbench("plan", str(tmp_path / "two-nodes.yaml"), "--json", *run[4:]).stdout)
    assert asked["suite"]["name"] == "$(HOME)"
    assert asked["suite"]["only"] == ["pre*"]
    launcher = asked["suite"]["launcher"]["kubernetes"]
    assert (launcher["nnodes"], launcher["image"]) == (3, OPTIONS["image"])


def test_the_pod_of_the_controller_stays_after_the_run_without_a_claim(manifests):
    sh, c, script, _, *_ = container(manifests(), "controller")["command"]
    done = subprocess.run(
        [sh, c, script, "0", "sh", "-c", "trap 'exit 7' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        7,
        "the run has ended with code 7; this pod stays for 0 seconds\n",
    )
    shared = manifests("--set", "launcher.kubernetes.claim=reports")
    assert container(shared, "controller")["command"][:3] == ["python", "-P", "-m"]
    assert {"name": "reports", "mountPath": "/reports"} in container(shared, "agent")["volumeMounts"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"image": ""}, "launcher.kubernetes.image: needs an image"),
        ({"resources": {"requests": {"cpu": "500m"}}}, "launcher.kubernetes.resources: without gpus"),
        ({"pod": {"volumes": []}}, "launcher.kubernetes.pod: volumes is set by distbench"),
    ],
)
def test_what_makes_no_pod_is_refused(suite, distbench, options, told):
    change = f"launcher={json.dumps({'kubernetes': {**OPTIONS, **options}})}"
    done = distbench("launch", str(suite), "--on", "kubernetes", "--print", "--set", change)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_a_run_is_started_by_its_pods_only(suite, distbench, tmp_path):
    done = distbench("run", str(suite), "--out", str(tmp_path / "reports"))
    assert done.returncode == 2
    assert "two-nodes.yaml:9: launcher.kubernetes: distbench runs as the command of a pod" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_in_a_pod_of_distbench_auto_is_kubernetes(suite, monkeypatch):
    suite.write_text(f"{QUICK}strategies: [ddp]\n")
    assert load_suite(suite).launcher.name == "local"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert load_suite(suite).launcher.name == "local"
    monkeypatch.setenv("DISTBENCH_TOKEN", "0" * 64)
    assert load_suite(suite).launcher.name == "kubernetes"


@pytest.fixture
def running_pods(manifests) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Starts two agents with the command and the environment of their pods; both are on this host."""
    running: list[subprocess.Popen[bytes]] = []

    def started(port: int) -> list[dict[str, Any]]:
        written = manifests("--set", f"launcher.kubernetes.port={port}")
        command = container(written, "agent")["command"]
        assert command[0] == "python"
        for node in ("node-b", "node-a"):
            told = variables(written, "agent", node)
            # what a cluster's DNS says of the controller
            told["DISTBENCH_CONTROLLERS"] = f"127.0.0.1:{told['DISTBENCH_CONTROLLERS'].rpartition(':')[2]}"
            environment = {**os.environ, **told}
            running.append(subprocess.Popen([sys.executable, *command[1:]], env=environment))
        return written

    yield started
    assert [each.wait(20) for each in running] == [0, 0]


def test_agents_of_pods_wait_for_the_controller_serve_it_and_end_with_the_run(
    running_pods, tmp_path, chore, monkeypatch
):
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    written = running_pods(port)
    for name, value in variables(written, "controller", "").items():
        monkeypatch.setenv(name, value)
    options = {**OPTIONS, "port": port, "start_timeout": 30.0}
    with closing(
        registry.create_plugin("launchers", PluginChoice("kubernetes", options)).open_session("run")
    ) as site:
        for _ in range(2):
            handle = site.launch(launch_of(tmp_path / "run", f"echo $DISTBENCH_NODE > {tmp_path}/$RANK", 4))
            assert handle.ranks_by_node == {"node-a": [0, 1], "node-b": [2, 3]}
            exits = []
            while len(exits) < 4:
                exits += handle.wait(10)
            handle.stop()
            assert {each.code for each in exits} == {0}
            assert [Path(tmp_path / str(rank)).read_text() for rank in (0, 3)] == ["node-a\n", "node-b\n"]
