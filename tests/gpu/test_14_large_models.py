"""Models with billions of parameters: what preparing, building and every pass of them takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gpu_runs import measured, strategies, work

from support.gpu_report import REHEARSAL, Check, Report

SUITE = "precision: bf16\nactivation_checkpointing: full\nmeasure: {warmup: 2, steps: 4, trials: 1}\n"
OFFLOAD = "strategies: [{fsdp: {cpu_offload: true}}]\n"


@pytest.mark.minutes(9)
def test_a_billion_parameters_under_every_strategy(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    seven = strategies("single", "ddp", "fsdp", "{fsdp: {version: 1}}", "{zero: {stage: [1, 2, 3]}}")
    measure_large("{preset: 1b, seq_len: 4096}", seven, check, gpu_report, tmp_path)


@pytest.mark.minutes(6)
@pytest.mark.host_memory(100)
def test_three_billion_with_offload(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    measure_large("{preset: 3b, seq_len: 2048}", OFFLOAD, check, gpu_report, tmp_path)


@pytest.mark.minutes(10)
@pytest.mark.host_memory(200)
def test_eight_billion_with_offload(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    measure_large("{preset: 8b, seq_len: 2048}", OFFLOAD, check, gpu_report, tmp_path)


def measure_large(shape: str, compared: str, check: Check, report: Report, folder: Path) -> None:
    began = time.monotonic()
    trials = measured(folder, f"{work(shape, 2)}{compared}{SUITE}", report)
    spent_s = sum(record.wall_s for record in trials.values())
    check.figure("preparing, and all else that is no trial", time.monotonic() - began - spent_s, "s")
    for label, record in trials.items():
        for phase in ("build", "check"):
            check.figure(f"{label} {phase}", max(record.phases.get(phase, [float("nan")])), "s")
        for name, unit in (("step_s", "s"), ("memory_reserved_peak", "B"), ("memory_host", "B")):
            check.figure(f"{label} {name}", record.values.get(name, record.reason), unit)
    told = {label: f"{record.status}: {record.reason}" for label, record in trials.items()}
    assert {record.status.value for record in trials.values()} == {"measured"}, told
    assert REHEARSAL or all(record.values["memory_peak"] > 1e9 for record in trials.values())
