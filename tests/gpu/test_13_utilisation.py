"""What the GPU can multiply, and how much of it a model with a billion parameters gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import measured, work

from support.gpu_report import Check, Report

pytestmark = pytest.mark.cuda
_1B = "{preset: 1b, seq_len: 4096}"


@pytest.mark.minutes(3)
@pytest.mark.parametrize("size", [2048, 8192])
def test_a_large_product_comes_near_to_the_published_peak(
    size: int, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    suite = (
        f"{work()}strategies: [single]\nprecision: bf16\nmeasure: {{steps: 3, trials: 1}}\n"
        f"metrics: [steptime, {{utilisation: {{measure_peak: true, matmul_size: {size}}}}}]\n"
    )
    record = measured(tmp_path, suite, gpu_report)["single"]
    peak, rate = record.values.get("peak_flops"), record.values["matmul_flops"]
    check.figure("matmul_flops", rate, "FLOP/s")
    check.figure("peak_flops", peak or record.absent["peak_flops"], "FLOP/s" * bool(peak))
    assert peak or "no published peak" in record.absent["peak_flops"]
    if peak:
        check.figure("of the published peak", rate / peak)
        assert rate < peak
        assert size < 8192 or rate > 0.5 * peak


@pytest.mark.minutes(4)
def test_a_billion_parameters_use_a_good_part_of_it(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    suite = (
        f"{work(_1B, 2)}strategies: [single]\nprecision: bf16\nactivation_checkpointing: full\n"
        "measure: {warmup: 2, steps: 8, trials: 1}\n"
    )
    record = measured(tmp_path, suite, gpu_report)["single"]
    for name in ("mfu", "hfu", "tokens_per_s", "memory_peak", "memory_reserved_peak"):
        check.figure(name, record.values.get(name, record.absent.get(name, record.reason)))
    assert 0.3 < record.values["mfu"] < 0.6


@pytest.mark.minutes(3)
def test_tf32_is_as_fast_as_its_peak_lets_expect(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    ran = {}
    for matmul in ("highest", "high"):
        (tmp_path / matmul).mkdir()
        suite = (
            f"{work()}strategies: [single]\nprecision: {{matmul: {matmul}}}\n"
            "measure: {steps: 10, trials: 1}\n"
            "metrics: [steptime, convergence, {utilisation: {measure_peak: true}}]\n"
        )
        ran[matmul] = measured(tmp_path / matmul, suite, gpu_report)["single"].values
        for name, unit in (("step_s", "s"), ("matmul_flops", "FLOP/s")):
            check.figure(f"{matmul}: {name}", ran[matmul][name], unit)
    assert ran["high"]["matmul_flops"] > 2 * ran["highest"]["matmul_flops"]
    assert ran["high"]["step_s"] < ran["highest"]["step_s"]
    assert ran["high"]["final_loss"] == pytest.approx(ran["highest"]["final_loss"], rel=1e-2)
