"""Every strategy in every precision: measured, or it says why not; and it trains as one device does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_runs import FEW, PRECISIONS, STRATEGIES, measured, work

from distbench.record import Record
from support.gpu_report import REHEARSAL, Check, Report

MEASURE = "measure: {warmup: 2, steps: 6, trials: 1}\noptimizer: {clip_grad_norm: 1.0}\n"
KERNELS = """
strategies:
  - single
  - zero: {stage: 2, optimizer_kernel: deepspeed}
  - zero: {stage: 2, optimizer_kernel: deepspeed, offload_optimizer: cpu}
"""


@pytest.fixture(scope="module", params=["bf16", "fp32", "fp16"])
def ran(
    request: pytest.FixtureRequest, gpu_report: Report, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Record]:
    """Every strategy, with clipping and two micro-batches a step."""
    suite = work().replace("{global_batch_size:", "{gradient_accumulation_steps: 2, global_batch_size:")
    suite += f"{STRATEGIES}{MEASURE}precision: {PRECISIONS[request.param]}\n"
    return measured(tmp_path_factory.mktemp(request.param), suite, gpu_report)


@pytest.mark.minutes(6)
def test_each_is_measured_or_says_why_not(ran: dict[str, Record], check: Check) -> None:
    assert_measured(ran, check)


@pytest.mark.minutes(6)
def test_each_trains_as_one_device_does(ran: dict[str, Record], check: Check) -> None:
    single = next(measured_ones(ran))[1].values
    for label, record in measured_ones(ran):
        loss, norm = record.values["final_loss"], record.values.get("grad_norm", float("nan"))
        check.figure(f"{label} final_loss", loss)
        assert loss == pytest.approx(single["final_loss"], rel=5e-3), label
        assert norm == pytest.approx(single["grad_norm"], rel=0.05), label


@pytest.mark.minutes(6)
def test_the_loss_scale_is_the_one_asked_for(ran: dict[str, Record]) -> None:
    for label, record in measured_ones(ran):
        assert record.effective["loss_scale"] == record.case.precision.loss_scale, label
        assert record.effective["gradient_accumulation_steps"] == 2, label


@pytest.mark.cuda
@pytest.mark.minutes(6)
def test_the_numbers_of_a_gpu_are_there(ran: dict[str, Record]) -> None:
    for label, record in measured_ones(ran):
        values = record.values
        assert values["memory_reserved_peak"] >= values["memory_peak"] > 0, label
        assert values["memory_device_peak"] > values["memory_reserved_peak"], label
        assert record.environment["gpu"] and record.environment["nccl"], label
        assert record.devices[0] and record.devices[0].uuid.startswith("GPU-"), label


@pytest.mark.minutes(6)
def test_activations_computed_again_change_nothing(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    ran = {}
    for what in ("none", "selective", "full"):
        (tmp_path / what).mkdir()
        suite = f"{work()}{FEW}{MEASURE}precision: bf16\nactivation_checkpointing: {what}\n"
        ran[what] = dict(measured_ones(measured(tmp_path / what, suite, gpu_report)))
    assert ran["none"].keys() == ran["selective"].keys() == ran["full"].keys()
    for label, record in ran["none"].items():
        kept = {what: records[label].values["memory_activations"] for what, records in ran.items()}
        check.figure(f"{label} activations, selective over none", kept["selective"] / kept["none"])
        check.figure(f"{label} activations, full over none", kept["full"] / kept["none"])
        assert kept["full"] < kept["selective"] < kept["none"], label
        losses = [records[label].values["final_loss"] for records in ran.values()]
        assert losses == pytest.approx([record.values["final_loss"]] * 3, rel=5e-3), label


@pytest.mark.needs("deepspeed")
@pytest.mark.minutes(6)
def test_deepspeeds_own_kernels_are_built_or_say_why_not(
    check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    records = measured(tmp_path, f"{work()}{KERNELS}{MEASURE}precision: bf16\n", gpu_report)
    told = {label: f"{record.status}: {record.reason}"[:160] for label, record in records.items()}
    for label, text in told.items():
        check.figure(label, text)
    assert {record.status.value for record in records.values()} <= {
        "measured",
        "unsupported",
        "prepare_failed",
    }, told
    single = records["single"].values["final_loss"]
    for label, record in measured_ones(records):
        assert record.values["final_loss"] == pytest.approx(single, rel=5e-3), label


def assert_measured(ran: dict[str, Record], check: Check) -> None:
    """No trial failed, and only what says so is unsupported."""
    told = {label: f"{record.status}: {record.reason}" for label, record in ran.items()}
    for label, record in ran.items():
        check.figure(label, record.values.get("step_s", told[label]), "s" * ("step_s" in record.values))
    assert {record.status.value for record in ran.values()} <= {"measured", "unsupported"}, told
    assert all(record.reason for record in ran.values() if record.status == "unsupported"), told
    # DeepSpeed refuses fp16 on a CPU
    assert REHEARSAL or len(list(measured_ones(ran))) > len(ran) / 2, told


def measured_ones(ran: dict[str, Record]) -> Iterator[tuple[str, Record]]:
    """Those that were measured; ``single`` comes first."""
    assert ran["single"].status == "measured", ran["single"].reason
    for label, record in sorted(ran.items(), key=lambda pair: pair[0] != "single"):
        if record.status == "measured":
            yield label, record
