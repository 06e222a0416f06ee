"""Ray on two nodes: they train as one, and nobody is left when an actor, a raylet or the command is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.fault_table import Drill
from support.network_nodes import Bench, join_ray
from support.runs import MODELS, QUICK, Finished, run_in
from support.shell_jobs import sleepers, soon
from support.suites import write_suite

LOST = "lost the agent on {}"
TRIAL = """
import pathlib, sys
from support.shell_jobs import launch_of
from distbench.launchers.base import LaunchError
from distbench.launchers.ray import Ray
site = Ray(start_timeout=60.0).open_session("drill")
try:
    handle = site.launch(launch_of(pathlib.Path(sys.argv[1]), f"sleep {sys.argv[2]}", 2))
    while True:
        handle.wait(10)
except LaunchError as error:
    print(error)
finally:
    site.close()
"""


def on(bench: Bench, node: str, word: str) -> psutil.Process:
    """The process on *node* in whose command line *word* is, the oldest if there are several."""
    processes = [psutil.Process(pid) for pid in bench.processes(node)]
    return min(
        (each for each in processes if word in " ".join(each.cmdline())), key=lambda each: each.create_time()
    )


def test_two_nodes_of_ray_train_as_one(bench: Bench, ray_cluster: dict[str, str], tmp_path: Path) -> None:
    text = f"{QUICK}strategies: [ddp]\n"
    near = run_in(tmp_path, f"{text}launcher: local\n")
    suite = write_suite(tmp_path, text, "far.yaml")
    command = [sys.executable, "-m", "distbench", "run", str(suite), "--out", str(tmp_path / "far")]
    done = bench.run(bench.nodes[0], "env", f"--chdir={MODELS}", *command, **ray_cluster)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "far").iterdir()
    far = Finished(0, "", {}, run)
    assert far.record("ddp")["nodes"] == {bench.nodes[0]: [0], bench.nodes[1]: [1]}
    losses = [each.record("ddp")["samples"]["loss"] for each in (near, far)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("victim", "node", "told"),
    [
        pytest.param("ray::AgentActor.serve", 1, LOST, marks=pytest.mark.drill("Ray's actor is killed")),
        pytest.param("raylet/raylet", 1, LOST, marks=pytest.mark.drill("a raylet is killed")),
        pytest.param("distbench-drill", 0, "", marks=pytest.mark.drill("the command on Ray is killed")),
    ],
)
def test_what_ray_loses_is_noticed_and_nobody_is_left(
    bench: Bench,
    ray_cluster: dict[str, str],
    tmp_path: Path,
    chore: None,
    nap: str,
    drill: Drill,
    victim: str,
    node: int,
    told: str,
) -> None:
    there = bench.nodes[node]
    command = [sys.executable, "-c", TRIAL, str(tmp_path / "run"), nap, "distbench-drill"]
    path = f"{Path(__file__).parents[1]}:{Path(__file__).parents[2]}"
    variables = {**os.environ, **ray_cluster, "PYTHONPATH": path}
    entered = bench.command(bench.nodes[0], *command)
    with subprocess.Popen(entered, env=variables, stdout=subprocess.PIPE, text=True) as trial:
        soon(lambda: len(sleepers(nap)) == 2, "they never began", 60)
        on(bench, there, victim).send_signal(signal.SIGKILL)
        began = time.monotonic()
        drill.noticed(soon(lambda: not sleepers(nap), "a rank was left"))
        said, _ = trial.communicate(timeout=60)
    drill.seen(said.strip() or "nothing: it was killed")
    assert told.format(there) in said
    assert time.monotonic() - began < 30
    if victim.startswith("raylet"):
        join_ray(bench, there, ray_cluster["RAY_ADDRESS"])
