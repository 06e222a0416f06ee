"""Ranks are forked from a parent that has imported torch and DeepSpeed and not touched CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu_runs import FEW, SMALL, measured, work

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.plan import make_plan
from distbench.suite import load_suite
from support.gpu_report import Check, Report


@pytest.mark.needs("deepspeed")
@pytest.mark.minutes(3)
def test_the_parent_has_one_thread_and_no_cuda(check: Check, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{work(SMALL)}{FEW}launcher: local\n")
    zero = registry.create_plugin("strategies", PluginChoice("zero", {"stage": 3}))
    (case,) = [
        planned.case for planned in make_plan(load_suite(suite)).cases if planned.case.label == "zero3"
    ]
    imports = ("distbench.worker.preload", *zero.imports(case))
    environment = {**os.environ, **zero.environment(case)}
    parent = ForkServerClient(imports, environment, tmp_path / "parent.log", 150)
    try:
        threads = len(list(Path(f"/proc/{parent.pid}/task").iterdir()))
        check.figure("threads of the parent", threads)
        check.figure("CUDA touched", parent.initialized_cuda)
    finally:
        parent.close()
    assert threads == 1 and not parent.initialized_cuda


@pytest.mark.minutes(4)
def test_every_strategy_runs_in_forked_ranks(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    suite = f"{work(SMALL)}{FEW}launcher: local\nmeasure: {{warmup: 1, steps: 3, trials: 1}}\n"
    records = measured(tmp_path, suite, gpu_report)
    for label, record in records.items():
        check.figure(f"{label} launch_s", record.values.get("launch_s", record.reason), "s")
    ended = {label: f"{record.status}: {record.reason}" for label, record in records.items()}
    assert {record.status.value for record in records.values()} == {"measured"}, ended
    # DeepSpeed 1 and 2 ask NVML for the free memory in the child of a parent that has initialised it
    assert all(record.environment["warm"] for record in records.values()), ended
