"""Ends of allocations on a real Slurm: nothing measured before is lost, nobody is left, a new one goes on."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record import Record, Status
from distbench.record.run_folder import Run
from support.fault_table import Drill
from support.network_nodes import Bench, SlurmBench
from support.runs import MODELS, PLUGINS, QUICK
from support.shell_jobs import soon

TRIALS = 8
SUITE = f"{QUICK.replace('[2]', '[4]').replace('trials: 1', f'trials: {TRIALS}')}strategies: [ddp]\n"


@pytest.fixture(scope="module")
def slurm(bench: Bench) -> Iterator[SlurmBench]:
    """Slurm with a second partition, whose jobs take the nodes of those in the first."""
    nodes = ",".join(bench.nodes)
    settings = ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    settings.append(f"PartitionName=urgent Nodes={nodes} PriorityTier=10 MaxTime=00:10:00 State=UP")
    made = SlurmBench(bench, settings="\n".join([*settings, ""]))
    yield made
    made.close()


class Followed:
    """A run from a login node, in a process of its own."""

    def __init__(self, slurm: SlurmBench, folder: Path, options: str = "", text: str = SUITE) -> None:
        self._slurm, self._folder = slurm, folder
        suite, out = folder / "suite.yaml", folder / "out"
        suite.write_text(f"{text}launcher: {{slurm: {{{options}}}}}\n")
        self._log = folder / "follower.log"
        self._process = self._started("run", str(suite), "--out", str(out))
        soon(lambda: list(out.glob("*/submitted/job.json")), "it was not handed over")
        (self.folder,) = out.iterdir()

    def resumed(self, *options: str) -> int:
        """Exit code of the run when it was handed over again."""
        self._process = self._started("run", "--resume", str(self.folder), *options)
        return self.code()

    def measures(self) -> None:
        """Wait until two trials are measured and the third runs."""
        soon(lambda: len(list(self.folder.glob("trials/*/2/rank0.log"))), "no trial was made", 120)

    def code(self) -> int:
        return self._process.wait(240)

    def records(self) -> list[Record]:
        return Run(self.folder).records()

    def statuses(self) -> set[Status]:
        return {record.status for record in self.records()}

    @property
    def said(self) -> str:
        return self._log.read_text()

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distbench", *words, "--on", "slurm", "--nodes", "2"]
        with self._log.open("ab") as log:
            environment = {
                **psutil.Process().environ(),
                **self._slurm.variables,
                PLUGIN_PATH_VARIABLE: PLUGINS,
            }
            return subprocess.Popen(command, cwd=MODELS, env=environment, stdout=log, stderr=log)


def of_the_run(bench: Bench) -> list[int]:
    """Processes of distbench on the nodes."""
    found = []
    for node in bench.nodes:
        for pid in bench.processes(node):
            try:
                words = psutil.Process(pid).cmdline()
            except psutil.Error:
                continue
            found += [pid] if "distbench" in shlex.join(words) else []
    return found


def completes(run: Followed, bench: Bench, before: list[Record]) -> None:
    """Nobody is left, nothing that was measured is made again, and a new allocation makes the rest."""
    soon(lambda: not of_the_run(bench), "processes were left")
    measured = {r.round: r.started for r in before if r.status is Status.MEASURED}
    assert len(measured) >= 2
    assert run.resumed() == 0, run.said
    after = {record.round: record.started for record in run.records()}
    assert len(after) == TRIALS
    assert run.statuses() == {Status.MEASURED}
    assert measured.items() <= after.items()


def test_scancel(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    run = Followed(slurm, tmp_path)
    run.measures()
    slurm.call("scancel", "--user=root")
    assert run.code() in (130, 143), run.said
    assert f"resume with: distbench run --resume {run.folder} --on slurm --nodes 2" in run.said
    completes(run, bench, run.records())


def test_a_node_is_set_down(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    run = Followed(slurm, tmp_path)
    run.measures()
    slurm.call("scontrol", "update", f"nodename={bench.nodes[1]}", "state=down", "reason=drill")
    try:
        assert run.code() > 0
        assert "NODE_FAIL" in run.said
        before = run.records()
    finally:
        # refused if it has come back by itself (ReturnToService)
        with contextlib.suppress(RuntimeError):
            slurm.call("scontrol", "update", f"nodename={bench.nodes[1]}", "state=resume")
    completes(run, bench, before)


SLOW = SUITE.replace("[ddp]", "[sleepy]").replace("steps: 3", "steps: 40")
"""A suite that takes longer than Slurm to notice that it has lost a node."""


@pytest.mark.drill("two nodes: slurmd of one is killed")
def test_slurmd_of_a_node_is_killed(bench: Bench, slurm: SlurmBench, tmp_path: Path, drill: Drill) -> None:
    lost = bench.nodes[1]
    run = Followed(slurm, tmp_path, text=SLOW)
    run.measures()
    (daemon,) = [pid for pid in bench.processes(lost) if psutil.Process(pid).name() == "slurmd"]
    psutil.Process(daemon).kill()
    began = time.monotonic()
    try:
        assert run.code() > 0
        drill.noticed(time.monotonic() - began)
        drill.seen(next(line for line in run.said.splitlines() if "NODE_FAIL" in line))
        assert f"NODE_FAIL ({lost}: Not responding)" in run.said
        before = run.records()
        soon(lambda: not of_the_run(bench), "processes were left")
    finally:
        slurm.boot(lost)
    completes(run, bench, before)


def test_two_runs_that_share_their_nodes(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    text = SUITE.replace("[4]", "[2]").replace(f"trials: {TRIALS}", "trials: 12")
    for folder in folders:
        folder.mkdir()
    runs = [Followed(slurm, folder, "exclusive: false", text) for folder in folders]
    assert [run.code() for run in runs] == [0, 0], [run.said for run in runs]
    times = []
    for run in runs:
        own = run.records()
        assert len(own) == 12
        assert run.statuses() == {Status.MEASURED}
        assert {record.run_id for record in own} == {Run(run.folder).info().run_id}
        times.append((min(record.started for record in own), max(record.started for record in own)))
    one, other = times
    assert one[0] < other[1] and other[0] < one[1], "they did not run at once"
    soon(lambda: not of_the_run(bench), "processes were left")


def test_a_gate_that_slurm_warns_of_the_time_limit(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    suite, log = tmp_path / "suite.yaml", tmp_path / "gate.log"
    suite.write_text(
        f"{SUITE.replace('[4]', '[2]')}gate: {{min_pairs: 50, max_pairs: 50, efficiency: false}}\n"
    )
    gate = [sys.executable, "-m", "distbench", "gate", str(suite), "--self-test", "--out", str(tmp_path)]
    asked = ["--parsable", "-N2", "--exclusive", f"--chdir={MODELS}", f"--output={log}", "--wrap"]
    job = slurm.call("sbatch", *asked, f"exec {shlex.join(gate)}").strip()
    soon(lambda: list(tmp_path.glob("gate-*/*/trials/*/1/rank0.log")), "no trial was made", 120)
    # as at the time that --signal=B:USR1@120 names
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    soon(lambda: "ExitCode=75:0" in slurm.call("scontrol", "show", "job", job), "it did not end", 60)
    assert "stopped after the trial in flight; resume with: distbench gate" in log.read_text()
    soon(lambda: not of_the_run(bench), "processes were left")
    (folder,) = tmp_path.glob("gate-*")
    for arm in ("baseline", "candidate"):
        assert {record.status for record in Run(folder / arm).records()} == {Status.MEASURED}


def test_the_time_limit(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    many = SUITE.replace(f"trials: {TRIALS}", "trials: 100")
    run = Followed(slurm, tmp_path, "time: 1, warning: 20", many)
    assert run.code() == 75, run.said
    assert "stopped after the trial in flight" in run.said
    assert run.statuses() == {Status.MEASURED}, "the trial in flight has ended"
    assert Run(run.folder).info().state == "interrupted"
    soon(lambda: not of_the_run(bench), "processes were left")


def test_a_preempted_job_goes_on_when_it_gets_its_nodes_again(
    bench: Bench, slurm: SlurmBench, tmp_path: Path
) -> None:
    run = Followed(slurm, tmp_path, "requeue: true")
    run.measures()
    urgent = ["--partition=urgent", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3"]
    slurm.call("sbatch", *urgent)
    assert run.code() == 0, run.said
    assert len(run.records()) == TRIALS
    assert run.statuses() == {Status.MEASURED}
    (log,) = (run.folder / "submitted").glob("*.err")
    assert "PREEMPTION" in log.read_text()
    soon(lambda: not of_the_run(bench), "processes were left")
