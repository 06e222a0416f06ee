"""``--check`` on a GPU: every strategy is the same training, and what a check of a larger model costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import PRECISIONS, SMALL, records, strategies, work

from support.gpu_report import REHEARSAL, Check, Report
from support.runs import run_in

JOBS = "optimizer: {clip_grad_norm: 1.0}\nmeasure: {trials: 0}\n" + strategies(
    "single", "ddp", "fsdp", "{fsdp: {version: 1}}", "{zero: {stage: [1, 2, 3]}}"
)


@pytest.mark.minutes(6)
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_every_strategy_is_the_same_training(precision: str, check: Check, tmp_path: Path) -> None:
    head = work(SMALL, 8).replace("batch: {", "batch: {gradient_accumulation_steps: 2, ")
    done = run_in(
        tmp_path, f"{head}{JOBS}precision: {PRECISIONS[precision]}\ncheck: {{steps: 10, fp32: false}}\n"
    )
    told = {name: case["equivalence"] for name, case in done.cases.items() if case["equivalence"]}
    verdicts = {name: equivalence["verdict"] for name, equivalence in told.items()}
    for name, verdict in verdicts.items():
        check.figure(name, verdict)
    assert verdicts and set(verdicts.values()) <= {"equivalent", "equivalent within rounding"}, verdicts
    # DeepSpeed refuses fp16 on a CPU
    assert REHEARSAL or verdicts.keys() == done.cases.keys()


@pytest.mark.minutes(8)
def test_a_hundred_million_parameters_are_checked_within_minutes(
    check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    suite = (
        f"{work('{preset: gpt2-small, seq_len: 256}', 8)}strategies: [ddp]\nprecision: bf16\n"
        "measure: {trials: 0}\ncheck: {steps: 3, fp32: false}\n"
    )
    checked = records(tmp_path, suite, gpu_report)["check"]
    for record in checked:
        name = f"{record.job.options.role} {record.case.optimizer.name}"
        check.figure(f"{name} wall", record.wall_s, "s")
        check.figure(
            f"{name} {record.status}", record.reason or f"{len(record.tables['check_tensors'])} prints"
        )
    assert {record.status.value for record in checked} == {"measured"}, [record.reason for record in checked]
