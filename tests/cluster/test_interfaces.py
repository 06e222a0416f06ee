"""Interfaces for sockets are checked on both nodes before a rank starts."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from support.network_nodes import Bench

SUITE = """
workload: mlp
batch: {global_batch_size: 4}
measure: {warmup: 1, steps: 3, trials: 1}
world_sizes: [2]
strategies: [ddp, fsdp]
metrics: [steptime]
"""


@pytest.fixture(scope="module")
def shell(bench: Bench) -> list[str]:
    return bench.ssh()


ENTER = ["sh", "-c", 'exec ip netns exec "$0" sh -c "$1"']
"""A remote shell that needs no address of the node."""


def run(bench: Bench, shell: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    suite = folder / "suite.yaml"
    hosts = [f"{node}:1" for node in bench.nodes]
    suite.write_text(
        f"{SUITE}launcher: {{ssh: {{hosts: {hosts}, shell: {shell}, forward: {list(variables)}}}}}\n"
    )
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(folder / "reports")]
    return bench.run(bench.nodes[0], *command, **variables)


@pytest.mark.parametrize(
    ("interface", "told"),
    [
        ("eth7", "{0}: GLOO_SOCKET_IFNAME = eth7: there is no interface eth7; "),
        ("lo", "GLOO_SOCKET_IFNAME selects lo on {0} and lo on {1}, which have the same address 127.0.0.1; "),
    ],
)
def test_an_interface_by_which_nodes_can_not_meet(
    bench: Bench, shell: list[str], tmp_path: Path, interface: str, told: str
) -> None:
    done = run(bench, shell, tmp_path, GLOO_SOCKET_IFNAME=interface)
    assert done.returncode == 4, done.stderr
    assert f"distbench: error: {told.format(*bench.nodes)}" in done.stderr
    assert done.stderr.count("GLOO_SOCKET_IFNAME") == 1
    assert not list(tmp_path.rglob("rank*.log"))


def test_a_node_without_loopback(bench: Bench, shell: list[str], tmp_path: Path) -> None:
    far = bench.nodes[1]
    subprocess.run(["ip", "-n", far, "link", "set", "lo", "down"], check=True)
    try:
        done = run(bench, shell, tmp_path)
    finally:
        subprocess.run(["ip", "-n", far, "link", "set", "lo", "up"], check=True)
    assert done.returncode == 4, done.stderr
    assert f"distbench: error: {far}: the loopback interface lo is down" in done.stderr
    assert "ip link set lo up" in done.stderr


def test_the_interface_between_the_nodes(bench: Bench, shell: list[str], tmp_path: Path) -> None:
    done = run(bench, shell, tmp_path, GLOO_SOCKET_IFNAME="eth0")
    assert done.returncode == 0, done.stderr


def test_nodes_of_ipv6_alone(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as bench:
        for number, node in enumerate(bench.nodes, 1):
            for change in (["flush", "dev", "eth0"], ["add", f"fd77::{number}/64", "dev", "eth0", "nodad"]):
                subprocess.run(["ip", "-n", node, "addr", *change], check=True)
        done = run(bench, ENTER, tmp_path, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("reports/*/trials/*/0/record.json"))) == 2
