"""Spark, as far as one process of it goes: two tasks of a barrier stage on local[2] are two nodes."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from distbench.launchers.spark import Spark
from support.runs import QUICK, run_in
from support.shell_jobs import launch_of, sleepers, soon

LOCAL = "launcher: {spark: {master: 'local[2]', nnodes: 2, slots: 1}}\n"


def test_two_tasks_of_spark_train_as_one_machine(tmp_path: Path) -> None:
    text = f"{QUICK}strategies: [ddp]\n"
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    here = run_in(near, f"{text}launcher: local\n")
    there = run_in(far, text + LOCAL)
    assert list(there.record("ddp")["nodes"].values()) == [[0], [1]]
    losses = [run.record("ddp")["samples"]["loss"] for run in (here, there)]
    assert losses[0] == losses[1]


def test_a_task_that_is_killed_takes_its_ranks_along(tmp_path: Path, chore: None, nap: str) -> None:
    site = Spark(master="local[2]", nnodes=2, slots=1).open_session("drill")
    try:
        site.launch(launch_of(tmp_path, f"sleep {nap}", 2))
        soon(lambda: len(sleepers(nap)) == 2, "they never began", 30)
        agents = [each for each in psutil.process_iter() if "distbench.worker agent" in " ".join(words(each))]
        agents = [each for each in agents if each.environ().get("DISTBENCH_RUN_ID") == "drill"]
        parent = agents[0].parent()
        assert parent is not None
        parent.send_signal(signal.SIGKILL)
        soon(lambda: len(sleepers(nap)) < 2, "its rank was left")
    finally:
        site.close()
    soon(lambda: not sleepers(nap), "a rank was left")


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
