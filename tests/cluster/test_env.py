"""Ranks that torchrun, mpirun and srun start on two nodes: they join one run, and nobody is left of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distbench.ipc.channels import new_token
from support.fault_table import Drill
from support.network_nodes import Bench, SlurmBench
from support.runs import MODELS, QUICK, Finished, run_in
from support.shell_jobs import soon

ENV = f"{QUICK}strategies: [ddp]\nlauncher: {{env: {{start_timeout: 60}}}}\n"
ENDLESS = ENV.replace("steps: 3, trials: 1", "steps: 1000000, trials: 2")
MASTER_PORT = 29517


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    file = tmp_path / "suite.yaml"
    file.write_text(ENV)
    return file


def distbench(suite: Path, *words: str) -> list[str]:
    """Words after the interpreter that run *suite*."""
    return ["-m", "distbench", "run", str(suite), "--out", str(suite.parent / "out"), *words]


class Torchrun:
    """torchrun on each node of *bench*, which starts so many *processes* there."""

    def __init__(
        self, bench: Bench, suite: Path, *words: str, processes: tuple[int, int] = (1, 1), **variables: str
    ) -> None:
        self._bench = bench
        self.nodes = [
            subprocess.Popen(
                bench.command(node, *self._command(number, processes[number]), *distbench(suite, *words)),
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number, node in enumerate(bench.nodes)
        ]

    def finish(self, seconds: float = 120) -> tuple[list[int], list[str]]:
        """Exit codes and outputs."""
        texts = [process.communicate(timeout=seconds)[0] for process in self.nodes]
        return [process.returncode for process in self.nodes], texts

    def rank(self, number: int) -> psutil.Process:
        """Process of distbench that torchrun has started on node *number*."""
        return min(self._processes(number, "run"), key=lambda process: process.create_time())

    def forked_ranks(self) -> list[psutil.Process]:
        """Ranks of a trial: children of the fork servers of both nodes."""
        ranks = []
        for each in (server for number in range(2) for server in self._processes(number, "serve")):
            with contextlib.suppress(psutil.NoSuchProcess):
                ranks += each.children()
        return ranks

    def launchers(self) -> list[psutil.Process]:
        """Processes of torchrun itself on both nodes."""
        found = []
        for number in range(2):
            found += [
                each for each, command in self._commands(number) if "torch.distributed.run" in command[:4]
            ]
        return found

    def nobody_left(self) -> bool:
        """True if no process of torchrun or distbench is left on either node; sshd and slurmd may be."""
        commands = [command for number in range(2) for _, command in self._commands(number)]
        return not any("distbench" in " ".join(command) for command in commands)

    def _command(self, number: int, processes: int) -> list[str]:
        placed = [f"--nnodes={len(self._bench.nodes)}", f"--node-rank={number}"]
        address = self._bench.address(self._bench.nodes[0])
        meeting = [f"--master-addr={address}", f"--master-port={MASTER_PORT}"]
        launcher = [sys.executable, "-m", "torch.distributed.run", *placed, *meeting]
        return ["env", f"--chdir={MODELS}", *launcher, f"--nproc-per-node={processes}"]

    def _processes(self, number: int, word: str) -> list[psutil.Process]:
        """Processes on node *number* that run distbench, or its worker, with *word*."""
        modules = {("distbench", word), ("distbench.worker", word)}
        return [
            each
            for each, command in self._commands(number)
            if "torch.distributed.run" not in command and modules & set(itertools.pairwise(command))
        ]

    def _commands(self, number: int) -> list[tuple[psutil.Process, list[str]]]:
        """Processes on node *number* with their command lines."""
        found = []
        for pid in self._bench.processes(self._bench.nodes[number]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                found.append((process, process.cmdline()))
        return found


@pytest.fixture
def torchrun(bench: Bench) -> Iterator[Callable[..., Torchrun]]:
    """Starts torchrun on both nodes; nobody may be left of it."""
    made: list[Torchrun] = []

    def start(*words: object, **options: object) -> Torchrun:
        made.append(Torchrun(bench, *words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for each in made:
        soon(each.nobody_left, "a process was left", 20)
        for process in each.nodes:
            process.wait(20)


@pytest.fixture
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Path]]:
    """Two nodes, and a folder of which each has one of its own."""
    own = tmp_path_factory.mktemp("own")
    made = Bench(tmp_path_factory.mktemp("apart"), private=[own])
    yield made, own
    made.close()


def finished(suite: Path) -> Finished:
    """The only run of *suite*."""
    (folder,) = (suite.parent / "out").glob("suite-*")
    return Finished(0, "", {}, folder)


@pytest.fixture
def check_as_one(bench: Bench, suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """Check that both nodes have trained as one machine does, and left no file with a token."""

    def check() -> None:
        far = finished(suite)
        assert far.record("ddp")["nodes"] == {bench.nodes[0]: [0], bench.nodes[1]: [1]}
        text = f"{QUICK}strategies: [ddp]\nlauncher: local\n"
        near = run_in(tmp_path_factory.mktemp("near"), text)
        losses = [each.record("ddp")["samples"]["loss"] for each in (near, far)]
        assert losses[0] == losses[1]
        assert not list((suite.parent / "out").glob(".controller-*"))

    return check


def test_processes_of_torchrun_join_one_run(suite, torchrun, check_as_one) -> None:
    codes, texts = torchrun(suite).finish()
    assert codes == [0, 0], texts
    check_as_one()


def test_only_one_process_of_each_node_stays(suite, torchrun) -> None:
    codes, texts = torchrun(suite, processes=(2, 2)).finish()
    assert codes == [0, 0], texts
    assert "report: " in texts[0]
    assert not [line for line in texts[1].splitlines() if "ddp" in line]


def test_processes_of_mpirun_join_one_run(bench, suite, tmp_path, check_as_one) -> None:
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nexec {" ".join(bench.ssh())} "$@"\n')
    shell.chmod(0o755)
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", str(shell)]
    placed = ["--host", ",".join(bench.nodes), "-n", "2", "--map-by", "ppr:1:node", "--bind-to", "none"]
    exported = [word for name in ("PYTHONPATH", "PATH") for word in ("-x", name)]
    done = bench.run(
        bench.nodes[0], *mpirun, *placed, *exported, "--wdir", str(MODELS), sys.executable, *distbench(suite)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_as_one()


def test_tasks_of_srun_join_one_run(bench: Bench, slurm: SlurmBench, suite, check_as_one) -> None:
    command = ["srun", "-N2", "-n2", "--ntasks-per-node=1", f"--chdir={MODELS}", sys.executable]
    done = subprocess.run(
        [*command, *distbench(suite)],
        env={**os.environ, **slurm.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_as_one()


def test_nodes_without_a_shared_folder_meet_by_the_token(apart, suite) -> None:
    bench, own = apart
    out = ["--out", str(own / "out")]
    alone = Torchrun(bench, suite, *out, "--set", "launcher.env.start_timeout=5")
    codes, texts = alone.finish()
    assert codes == [1, 1], texts
    assert "use a folder (--out) that all nodes share, or set DISTBENCH_TOKEN" in texts[1]
    met = Torchrun(bench, suite, *out, DISTBENCH_TOKEN=new_token())
    codes, texts = met.finish()
    assert codes == [0, 0], texts
    assert "report: " in texts[0]


def test_unequal_nodes_are_one_clear_error(suite, torchrun) -> None:
    codes, texts = torchrun(suite, processes=(2, 1)).finish()
    assert codes == [1, 1]
    assert "LOCAL_WORLD_SIZE = 2, GROUP_WORLD_SIZE = 2: start equally many processes on each node" in texts[0]


@pytest.mark.parametrize(
    ("victim", "told"),
    [
        pytest.param(
            0, "lost the controller (rank 0)", marks=pytest.mark.drill("rank 0 of torchrun is killed")
        ),
        pytest.param(1, "lost the agent on", marks=pytest.mark.drill("rank 1 of torchrun is killed")),
    ],
)
def test_a_rank_that_dies_ends_the_run_on_both_nodes(
    suite: Path, torchrun: Callable[..., Torchrun], drill: Drill, victim: int, told: str
) -> None:
    suite.write_text(ENDLESS)
    job = torchrun(suite)
    soon(lambda: len(job.forked_ranks()) == 2, "no trial began", 90)
    ranks = job.forked_ranks()
    job.rank(victim).kill()
    drill.noticed(soon(lambda: not any(each.is_running() for each in ranks), "a rank was left"))
    codes, texts = job.finish(60)
    drill.seen(next(line for line in texts[1 - victim].splitlines() if told in line))
    assert codes == [1, 1], texts
    if victim:
        assert "the process of rank 1, which keeps the agent of its node, has ended" in texts[0]
        assert "resume with: distbench run --resume" in texts[0]


def test_torchrun_that_is_ended_stores_the_trial_and_says_how_to_go_on(suite, torchrun) -> None:
    suite.write_text(ENDLESS)
    job = torchrun(suite)
    progress = (suite.parent / "out").glob
    soon(lambda: len(list(progress("*/trials/*/0/rank*.progress"))) == 2, "no trial began", 90)
    for each in job.launchers():
        each.send_signal(signal.SIGTERM)
    _, texts = job.finish(60)
    assert "stopped; resume with: distbench run --resume" in texts[0]
    (record,) = finished(suite).folder.glob("trials/*/0/record.json")
    assert Finished.read(record)["status"] == "cancelled"
