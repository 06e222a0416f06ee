"""Slurm: the nodes of an allocation from what Slurm says in the environment. On a real one: tox -e deep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import QUICK, Done

from distbench.launchers.nodes import Node
from distbench.launchers.slurm import Slurm

SCONTROL = """#!/bin/sh
test "$*" = "show hostnames gpu[7-9]" && echo gpu7 gpu8 gpu9
"""
SUITE = QUICK.replace("[2]", "[4]") + "strategies: [pretended]\n"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts this process into an allocation; its ``scontrol`` knows the names of three nodes."""

    def entered(**variables: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        scontrol = folder / "scontrol"
        scontrol.write_text(
            '#!/bin/sh\n[ "$1 $2 $3" = "show hostnames gpu[7-9]" ] && printf "gpu7\\ngpu8\\ngpu9\\n"\n'
        )
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        given = {"SLURM_JOB_NODELIST": "gpu[7-9]", "SLURM_JOB_NUM_NODES": "3", **variables}
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    for name in ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    return entered


def test_a_node_takes_as_many_ranks_as_it_has_cores(inside: Callable[..., None]) -> None:
    inside(SLURM_JOB_CPUS_PER_NODE="4(x2),2")
    assert Slurm().members() == [Node("gpu7", 4), Node("gpu8", 4), Node("gpu9", 2)]
    assert [Slurm().nodes(processes) for processes in (1, 4, 5, 9)] == [1, 1, 2, 3]


def test_a_node_takes_as_many_ranks_as_it_has_gpus(inside: Callable[..., None]) -> None:
    inside(SLURM_JOB_CPUS_PER_NODE="64(x3)", SLURM_GPUS_ON_NODE="8")
    assert [node.slots for node in Slurm().members()] == [8, 8, 8]


@pytest.mark.parametrize(
    ("nodes", "launcher", "started"),
    [
        ("3", "", "srun"),
        ("1", "", "python"),
        ("1", "launcher: slurm\n", "srun"),
        ("3", "launcher: local\n", "python"),
    ],
)
def test_inside_an_allocation_of_several_nodes_all_of_them_are_used(
    tmp_path: Path,
    inside: Callable[..., None],
    distbench: Callable[..., Done],
    nodes: str,
    launcher: str,
    started: str,
) -> None:
    inside(SLURM_JOB_CPUS_PER_NODE="2(x3)", SLURM_JOB_NUM_NODES=nodes)
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.replace("[4]", "[2]") + launcher)
    done = distbench("plan", str(suite), "--json")
    (launch,) = json.loads(done.stdout)["launches"]
    assert Path(launch["commands"][0][0]).name.startswith(started)


def test_outside_of_an_allocation_it_says_what_to_do(
    tmp_path: Path, inside: Callable[..., None], distbench: Callable[..., Done]
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{SUITE}launcher: slurm\n")
    done = distbench("plan", str(suite))
    assert done.returncode == 2
    assert (
        "suite.yaml:9: launcher.slurm: this is no Slurm allocation; start distbench with sbatch"
        in done.stderr
    )
