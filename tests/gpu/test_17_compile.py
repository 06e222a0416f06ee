"""Compiled layers on a GPU: the same losses, compiled before the timed window, and what they gain."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import FEW, measured, work

from distbench.record import Record
from support.gpu_report import Check, Report

TIMED = "precision: bf16\nmeasure: {warmup: 6, steps: 10, trials: 1, profile_steps: 0}\n"


@pytest.fixture(scope="module")
def plain(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return measured(tmp_path_factory.mktemp("plain"), f"{work()}{FEW}{TIMED}", gpu_report)


@pytest.mark.minutes(6)
@pytest.mark.parametrize("mode", ["true", pytest.param("reduce-overhead", marks=pytest.mark.cuda)])
def test_compiled_layers_train_alike(
    mode: str, plain: dict[str, Record], check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    compiled = measured(tmp_path, f"{work()}{FEW}{TIMED}compile: {mode}\n", gpu_report)
    told = {label: f"{record.status}: {record.reason}" for label, record in compiled.items()}
    for label, record in compiled.items():
        values, before = record.values, plain[label].values
        check.figure(
            f"{label} compile_s", values.get("compile_s", told[label]), "s" * ("compile_s" in values)
        )
        check.figure(
            f"{label} step over that of eager", values.get("step_s", float("nan")) / before["step_s"]
        )
        check.figure(f"{label} graph breaks", str(record.effective.get("graph_breaks", "none told")))
    assert {record.status.value for record in compiled.values()} == {"measured"}, told
    for label, record in compiled.items():
        assert "compile_in_window_s" not in record.values, label
        assert record.values["final_loss"] == pytest.approx(plain[label].values["final_loss"], rel=1e-2), (
            label
        )
