"""Ray: what is asked of a cluster, from what it has (real ones: tests/cluster)."""

import json

import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.launchers.nodes import Node
from distbench.suite import load_suite
from support.runs import QUICK
from support.suites import write_suite

RAY = """
def init(address, **_):
    if address == "gone:1":
        raise ConnectionError("ray.init: no cluster at gone:1")

def nodes():
    return [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": False, "Resources": {}},
    ]
"""


@pytest.fixture
def ray(tmp_path, monkeypatch):
    """A Ray with two nodes that are alive, in the place of one that may be installed."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "ray.py").write_text(RAY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")


def ray_requests(options: dict[str, object]) -> dict[str, object]:
    launcher = registry.create_plugin("launchers", PluginChoice("ray", options))
    (command,) = launcher.agent_commands(launcher.node_list())
    assert command[1:5] == ["-P", "-m", "distbench.launchers.ray.driver", "agents"]
    said: dict[str, object] = json.loads(command[5])
    return said


@pytest.mark.usefixtures("ray")
def test_every_living_node_gets_what_the_smallest_has():
    launcher = registry.create_plugin("launchers", PluginChoice("ray", {"address": "all:1"}))
    assert launcher.node_list() == [Node("", 2, 2), Node("", 2, 2)]
    assert ray_requests({"address": "all:1", "resources": {"big": 0.5}}) == {
        "address": "all:1",
        "strategy": "STRICT_SPREAD",
        "bundles": [{"CPU": 2, "big": 0.5}] * 2,
        "runtime_env": {},
        "timeout_s": 300.0,
    }


def test_what_the_options_say_is_asked_of_nobody():
    options = {"nnodes": 3, "num_gpus": 8, "num_cpus": 16, "address": "nobody:1"}
    assert ray_requests(options)["bundles"] == [{"CPU": 16, "GPU": 8}] * 3
    machine = registry.create_plugin("launchers", PluginChoice("ray", options)).machine("auto")
    assert (machine.device, machine.devices, machine.nodes) == ("cuda", 24, 3)


@pytest.mark.usefixtures("ray")
def test_a_cluster_that_does_not_answer_is_named(tmp_path, distbench):
    suite = write_suite(
        tmp_path, f"{QUICK}strategies: [pretended]\nlauncher: {{ray: {{address: 'gone:1'}}}}\n"
    )
    done = distbench("plan", str(suite))
    told = "launcher.ray.address = 'gone:1': no Ray cluster answers: ConnectionError: ray.init: no cluster"
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(("nodes", "launcher"), [(None, "ray"), ("1", "ray"), ("2", "local")])
def test_auto_is_ray_where_an_address_is_around_but_not_in_an_allocation_of_several_nodes(
    tmp_path, monkeypatch, nodes, launcher
):
    suite = write_suite(tmp_path, f"{QUICK}strategies: [ddp]\n")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert load_suite(suite).launcher.name == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    if nodes:
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
    assert load_suite(suite).launcher.name == launcher
