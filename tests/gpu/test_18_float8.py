"""float8 in hardware: which layers ran in it, the same losses, and what it gains with compiled layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import FEW, measured, work

from distbench.record import Record
from support.gpu_report import Check, Report

TIMED = "measure: {warmup: 6, steps: 10, trials: 1, profile_steps: 0}\n"
LAYERS_OF_A_BLOCK = 7


@pytest.fixture(scope="module")
def plain(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return measured(tmp_path_factory.mktemp("plain"), f"{work()}{FEW}precision: bf16\n{TIMED}", gpu_report)


@pytest.mark.needs("torchao")
@pytest.mark.minutes(6)
@pytest.mark.cuda
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
@pytest.mark.parametrize("compile_", ["false", "true"])
def test_layers_in_float8_train_alike(
    recipe: str, compile_: str, plain: dict[str, Record], check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    precision = f"precision: {{compute: bf16, float8: {recipe}}}\ncompile: {compile_}\n"
    ran = measured(tmp_path, f"{work()}{FEW}{precision}{TIMED}", gpu_report)
    told = {label: f"{record.status}: {record.reason}" for label, record in ran.items()}
    trained = {label: record for label, record in ran.items() if record.status == "measured"}
    for label in ran:
        if label not in trained:
            check.figure(f"{label} step over that of bf16", told[label])
            continue
        values, before = trained[label].values, plain[label].values
        check.figure(f"{label} step over that of bf16", values["step_s"] / before["step_s"])
        check.figure(f"{label} memory over that of bf16", values["memory_peak"] / before["memory_peak"])
    # what the plan says of a strategy is no failure; what a rank runs into is
    assert {record.status.value for record in ran.values()} <= {"measured", "unsupported"}, told
    assert trained or all("compute capability" in reason for reason in told.values()), told
    for label, record in trained.items():
        depth = record.case.workload.options["depth"]
        assert record.effective["float8_layers"] == LAYERS_OF_A_BLOCK * depth, label
        assert not record.effective["float8_emulated"], label
        assert "mfu" not in record.values, label
        losses = [each.values["final_loss"] for each in (record, plain[label])]
        assert losses[0] == pytest.approx(losses[1], rel=2e-2), label
