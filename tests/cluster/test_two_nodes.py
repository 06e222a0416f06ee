"""Two nodes are one machine to a suite: the same losses, whichever engine starts the agents."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from support.network_nodes import Bench, SlurmBench
from support.runs import MODELS, QUICK, Finished, run_in

SUITE = f"{QUICK}strategies: [ddp, {{zero: {{stage: 2}}}}]\n"


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The suite on this machine."""
    return run_in(tmp_path_factory.mktemp("near"), f"{SUITE}launcher: local\n")


def suite_in(folder: Path, launcher: str = "") -> Path:
    file = folder / "suite.yaml"
    file.write_text(SUITE + launcher)
    return file


def finished(folder: Path) -> Finished:
    (run,) = (folder / "reports").iterdir()
    return Finished(0, "", {}, run)


def same_losses(near: Finished, far: Finished, nodes: dict[str, list[int]]) -> None:
    for strategy in ("ddp", "zero2"):
        assert far.record(strategy)["nodes"] == nodes
        losses = [run.record(strategy)["samples"]["loss"] for run in (near, far)]
        assert losses[0] == losses[1]


def test_slurm(bench: Bench, slurm: SlurmBench, near: Finished, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    command = f"exec {sys.executable} -m distbench run {suite_in(tmp_path)} --out {tmp_path}/reports"
    submitted = ["sbatch", "--wait", "-N2", f"--chdir={MODELS}", f"--output={log}", "--wrap", command]
    slurm.call(*submitted)
    same_losses(near, finished(tmp_path), {bench.nodes[0]: [0], bench.nodes[1]: [1]})


def test_ssh_and_a_check(bench: Bench, near: Finished, tmp_path: Path) -> None:
    hosts = [f"{node}:1" for node in bench.nodes]
    suite = suite_in(tmp_path, f"launcher: {{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}\n")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(tmp_path / "reports")]
    command += ["--check", "--json"]
    path = os.pathsep.join([str(MODELS), os.environ.get("PYTHONPATH", "")])
    done = bench.run(bench.nodes[0], "env", f"--chdir={MODELS}", *command, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    verdicts = {case["label"]: case["equivalence"]["verdict"] for case in json.loads(done.stdout)["cases"]}
    assert set(verdicts.values()) <= {EQUIVALENT, ROUNDING}
    assert len(verdicts) == 2
    same_losses(near, finished(tmp_path), {bench.nodes[0]: [0], bench.nodes[1]: [1]})


def test_ssh_without_a_shared_file_system(near: Finished, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    with closing(Bench(tmp_path, private=[reports])) as bench:
        hosts = [f"{node}:1" for node in bench.nodes]
        suite = suite_in(tmp_path, f"launcher: {{ssh: {{hosts: {hosts}, shell: {bench.ssh()}}}}}\n")
        command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(reports)]
        path = os.pathsep.join([str(MODELS), os.environ.get("PYTHONPATH", "")])
        done = bench.run(bench.nodes[0], "env", f"--chdir={MODELS}", *command, PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        own, other = (tmp_path / "private" / node / "0" for node in bench.nodes)
        (run,) = own.iterdir()
        assert not list(other.iterdir())
        same_losses(near, Finished(0, "", {}, run), {bench.nodes[0]: [0], bench.nodes[1]: [1]})
