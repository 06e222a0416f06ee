"""From a login node: what is handed to a real Slurm runs on its nodes, and is followed from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from distbench.record.record_reader import read_record
from distbench.record.run_folder import Run
from support.network_nodes import Bench, SlurmBench
from support.runs import QUICK, Done
from support.shell_jobs import soon

SCRIPT = Path(__file__).parents[2] / "docs" / "slurm.sh"
SUITE = f"{QUICK.replace('[2]', '[4]')}strategies: [ddp]\n"


@pytest.fixture
def login(slurm: SlurmBench, tmp_path: Path, distbench: Callable[..., Done]) -> Callable[..., Done]:
    """Hands a suite to Slurm, for both nodes."""

    def run(*arguments: str, text: str = SUITE) -> Done:
        suite = tmp_path / "a suite.yaml"
        suite.write_text(text)
        out = str(tmp_path / 'out "of" 100%')
        words = ["run", str(suite), "--on", "slurm", "--nodes", "2", "--out", out]
        return distbench(*words, *arguments, **slurm.variables)

    return run


def test_a_run_from_a_login_node(bench: Bench, login: Callable[..., Done], tmp_path: Path) -> None:
    done = login("--json")
    assert done.returncode == 0, done.stderr
    # measured, or noisy: it shares the machine with whatever else it does
    assert "[1/1] ddp/ws4/mb2/fp32 round 1: " in done.stderr
    shown = json.loads(done.stdout)
    (file,) = Path(shown["report"]).parent.glob("trials/*/0/record.json")
    assert read_record(file).record.nodes == {bench.nodes[0]: [0, 1], bench.nodes[1]: [2, 3]}


def test_what_the_job_waits_for_is_said_in_slurms_words(
    slurm: SlurmBench, login: Callable[..., Done]
) -> None:
    slurm.call("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 5")
    done = login()
    assert done.returncode == 0, done.stderr
    assert "PENDING (Resources)" in done.stderr


def test_the_batch_script_of_the_docs(bench: Bench, slurm: SlurmBench, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    work = "workload: {mlp: {}}\nbatch: {global_batch_size: 8}\nmeasure: {warmup: 1, steps: 3, trials: 1}\n"
    suite.write_text(f"{work}world_sizes: [4]\nstrategies: [ddp]\n")
    slurm.call("sbatch", f"--chdir={tmp_path}", f"--output={tmp_path}/job.log", str(SCRIPT), str(suite))
    soon(lambda: list(tmp_path.glob("reports/*/report.html")), "no report was written", 120)
    (run,) = (tmp_path / "reports").iterdir()
    (record,) = Run(run).records()
    assert record.nodes == {bench.nodes[0]: [0, 1], bench.nodes[1]: [2, 3]}


def test_a_partition_that_is_not_there_is_refused_in_slurms_words(login: Callable[..., Done]) -> None:
    done = login(text=f"{SUITE}launcher: {{slurm: {{partition: gone}}}}\n")
    assert done.returncode == 4
    assert "sbatch refused: sbatch: error: invalid partition specified: gone" in done.stderr
