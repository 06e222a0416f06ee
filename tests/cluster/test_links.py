"""The doctor on nodes whose links are as they should be, slow, or cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.network_nodes import Bench, SlurmBench


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, list[str]]]:
    """Three nodes, and the shell that reaches them."""
    bench = Bench(tmp_path_factory.mktemp("three"), nodes=3)
    yield bench, bench.ssh()
    bench.close()


def examined(bench: Bench, shell: list[str], out: Path) -> tuple[int, list[dict[str, Any]]]:
    hosts = [f"{node}:1" for node in bench.nodes]
    launcher = f"launcher={{ssh: {{hosts: {hosts}, shell: {shell}}}}}"
    command = [sys.executable, "-m", "distbench", "doctor", "--json", "--out", str(out), "--set", launcher]
    done: subprocess.CompletedProcess[str] = bench.run(bench.nodes[0], *command)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def problems(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["check"], each["where"]) for each in findings if each["grade"] == "problem"]


def test_sound_nodes_have_no_problem(three: tuple[Bench, list[str]], tmp_path: Path) -> None:
    bench, shell = three
    code, findings = examined(bench, shell, tmp_path)
    assert (code, problems(findings)) == (0, [])
    assert {each["where"] for each in findings if each["check"] == "interface"} == set(bench.nodes)


def test_the_node_with_the_slow_link_is_named(three: tuple[Bench, list[str]], tmp_path: Path) -> None:
    bench, shell = three
    bench.rate("500mbit")
    bench.rate("50mbit", bench.nodes[2])
    try:
        code, findings = examined(bench, shell, tmp_path)
    finally:
        bench.unlimit()
    assert code == 1
    assert problems(findings) == [("links", bench.nodes[2])]


def test_a_job_of_slurm_examines_its_nodes(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "distbench", "doctor", "--on", "slurm", "--nodes", "2", "--json"]
    findings = json.loads(slurm.call(*asked, "--out", str(tmp_path)))["findings"]
    assert problems(findings) == []
    assert {each["where"] for each in findings if each["check"] == "interface"} == set(bench.nodes)
    assert list(tmp_path.iterdir()) == []
