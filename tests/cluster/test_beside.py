"""Two runs at once on the same nodes: neither has anything of the other, whatever becomes of it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from distbench.record import Status
from distbench.record.run_folder import Run
from support.fault_table import Drill
from support.network_nodes import Bench, SlurmBench
from support.runs import MODELS, QUICK
from support.shell_jobs import soon
from support.two_node_faults import SUITE, prepared

TRIALS = 6


def its_own(run: Run) -> set[str]:
    """Ids of the runs that the records of *run* name."""
    return {json.loads(file.read_text())["run_id"] for file in run.folder.glob("trials/*/*/record.json")}


@pytest.mark.drill("two nodes: kill -9 of one of two commands")
def test_a_run_goes_on_beside_one_that_is_killed(bench: Bench, tmp_path: Path, drill: Drill) -> None:
    shell, folders = bench.ssh(), [tmp_path / name for name in ("killed", "other")]
    for folder in folders:
        folder.mkdir()
    with (
        prepared(bench, shell, folders[0]) as killed,
        # beside another, a trial has less of the machine
        prepared(bench, shell, folders[1], suite=SUITE.replace("step: 8", "step: 30")) as other,
    ):
        other.start()
        killed.start()
        killed.strikes()
        killed.found(0, "-m", "distbench", "run", str(folders[0] / "suite.yaml")).kill()
        own = Run(killed.run).info().run_id
        drill.noticed(soon(lambda: not killed.left(own), "processes were left", 10))
        assert other.ends() == 0, other.log()
        drill.seen("nothing: the other run is complete")
        assert other.statuses() == ["measured"] * 3
        assert killed.resume() == 0
        assert killed.statuses() == ["measured"] * 3
        assert [len(its_own(Run(each.run))) for each in (killed, other)] == [1, 1]


def test_two_runs_in_one_allocation_complete_and_are_not_mixed(
    bench: Bench, slurm: SlurmBench, tmp_path: Path
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{QUICK.replace('trials: 1', f'trials: {TRIALS}')}strategies: [ddp]\n")
    outs = [tmp_path / name for name in ("one", "other")]
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out"]
    script = " & ".join(shlex.join([*command, str(out)]) for out in outs)
    log = tmp_path / "job.log"
    slurm.call(
        "sbatch", "--wait", "-N2", f"--chdir={MODELS}", f"--output={log}", "--wrap", f"{script} & wait"
    )
    runs = [Run(folder) for out in outs for folder in out.iterdir()]
    times = []
    for run in runs:
        records = run.records()
        assert [record.status for record in records] == [Status.MEASURED] * TRIALS, log.read_text()
        assert its_own(run) == {run.info().run_id}
        assert all(record.nodes == {bench.nodes[0]: [0], bench.nodes[1]: [1]} for record in records)
        times.append((min(r.started for r in records), max(r.started for r in records)))
    one, other = times
    assert one[0] < other[1] and other[0] < one[1], "they did not run at once"
