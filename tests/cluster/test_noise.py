"""What disturbs a trial on one of several nodes is seen there, and marks the trial with the node's name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support.network_nodes import Bench
from support.runs import MODELS, QUICK, Finished

# the ranks' work has to stand out from their start
SUITE = QUICK.replace("steps: 3", "steps: 150") + "strategies: [ddp]\nmetrics: [steptime, telemetry]\n"


def test_a_busy_process_on_a_node_marks_the_trial_and_the_other_ranks_do_not(
    bench: Bench, tmp_path: Path
) -> None:
    quiet, noisy = (tmp_path / name for name in ("quiet", "noisy"))
    shell = bench.ssh()
    record = run_on(bench, quiet, shell).record("ddp")
    near, far = ([row for row in telemetry(record) if row["node"] == node] for node in bench.nodes)
    taken = sum(rank[0] for rank in record["samples"]["cpu_s"]) * 150
    for rows in (near, far):
        host = [row for row in rows if "own_s" in row]
        assert all("absent" not in row for row in rows)
        # nodes share this machine, so each sees both ranks, and both are of the run
        assert host[-1]["own_s"] - host[0]["own_s"] >= taken
    assert record["absent"]["gpu_power"] == "no GPU was used"

    for _ in range(2):
        bench.start(bench.nodes[1], sys.executable, "-c", "while True: pass")
    finished = run_on(bench, noisy, shell)
    record = finished.record("ddp")
    assert record["status"] == "measured"
    assert record["values"]["host_foreign_cpu"] > 0.1
    assert record["values"]["host_busy_processes"] >= 2
    assert f"{bench.nodes[1]}: other processes took" in record["degraded"]

    asked = "select distinct node from telemetry order by node"
    command = [sys.executable, "-m", "distbench", "query", asked, str(finished.folder), "--json"]
    assert all(node in bench.run(bench.nodes[0], *command).stdout for node in bench.nodes)


def telemetry(record: dict[str, Any]) -> list[dict[str, Any]]:
    return list(record["tables"]["telemetry"])


def run_on(bench: Bench, folder: Path, shell: list[str]) -> Finished:
    """What a trial of a rank on each node leaves in *folder*."""
    folder.mkdir()
    hosts = [f"{node}:1" for node in bench.nodes]
    suite = folder / "suite.yaml"
    suite.write_text(f"{SUITE}launcher: {{ssh: {{hosts: {hosts}, shell: {json.dumps(shell)}}}}}\n")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(folder / "out")]
    path = os.pathsep.join([str(MODELS), os.environ.get("PYTHONPATH", "")])
    done = bench.run(bench.nodes[0], "env", f"--chdir={MODELS}", *command, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "out").iterdir()
    return Finished(0, "", {}, run)
