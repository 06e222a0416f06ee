"""fp16 with a loss scale, with plain SGD: Adam would hide gradients of the wrong scale."""

from __future__ import annotations

import pytest
from gpu_runs import FEW, PRECISIONS, SMALL, measured, work

from distbench.record import Record
from support.gpu_report import Check, Report

SUITE = f"""
{FEW}
precision: {PRECISIONS["fp16"]}
optimizer: {{name: sgd, lr: 0.1, kernel: foreach}}
measure: {{warmup: 1, steps: 40, trials: 1, check_steps: 2}}
"""


@pytest.fixture(scope="module")
def ran(gpu_report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return measured(tmp_path_factory.mktemp("sgd"), work(SMALL, 8, data="text") + SUITE, gpu_report)


@pytest.mark.minutes(4)
def test_every_stage_takes_the_same_steps_as_one_device(ran: dict[str, Record], check: Check) -> None:
    fallen = {label: fall(record) for label, record in ran.items() if record.status == "measured"}
    for label, record in ran.items():
        check.figure(f"{label} fall of the loss", fallen.get(label, record.reason))
    assert fallen["single"] > 0.01, "the loss must move for this to tell anything"
    assert fallen == pytest.approx(dict.fromkeys(fallen, fallen["single"]), rel=0.05)


@pytest.mark.minutes(4)
def test_every_norm_is_told_without_the_loss_scale(ran: dict[str, Record], check: Check) -> None:
    norms = {
        label: record.values["grad_norm"] for label, record in ran.items() if record.status == "measured"
    }
    for label, norm in norms.items():
        check.figure(f"{label} grad_norm", norm)
    assert norms == pytest.approx(dict.fromkeys(norms, norms["single"]), rel=0.02)


@pytest.mark.needs("deepspeed")
@pytest.mark.minutes(4)
@pytest.mark.cuda
def test_every_stage_of_zero_trains_in_fp16(ran: dict[str, Record]) -> None:
    told = {label: f"{record.status}: {record.reason}" for label, record in ran.items()}
    assert {ran[f"zero{stage}"].status.value for stage in range(4)} == {"measured"}, told
    assert {ran[f"zero{stage}"].effective["loss_scale"] for stage in range(4)} == {1024}


def fall(record: Record) -> float:
    """How far the loss fell over the timed steps."""
    (losses,) = record.samples["loss"]
    first, last = losses[0], losses[-1]
    assert first is not None and last is not None
    return first - last
