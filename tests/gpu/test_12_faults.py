"""Faults on a GPU: each has its status, and the next trial is unharmed."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from gpu_runs import DEVICE, records, work

from distbench.core.job import MEASURE
from distbench.record import Record
from support.gpu_report import REHEARSAL, Check, Report

SMALL = "small:Small"
FAULTS = """
workload: {{user: {{model: "{model}", length: 32}}}}
data: text
device: {device}
world_sizes: [1]
strategies: [single]
batch: {{global_batch_size: 8}}
measure: {{warmup: 1, steps: 3, trials: 1}}
limits: {{step: 20, build: 120}}
include:
  - {{strategy: single, workload: {{user: {{model: "small:Small", length: 32}}}}}}
"""
EXPECTED = [
    pytest.param("on_gpu:OutOfMemory", "oom_gpu", marks=pytest.mark.cuda),
    pytest.param("on_gpu:PinsTooMuch", "oom_host", marks=pytest.mark.cuda),
    pytest.param("on_gpu:AssertsInAKernel", "crashed", marks=pytest.mark.cuda),
    ("on_gpu:KilledInAKernel", "crashed"),
    ("on_gpu:Sleeps", "hang"),
]


@pytest.mark.minutes(3)
@pytest.mark.parametrize(("model", "status"), EXPECTED)
def test_a_fault_has_its_status_and_the_next_trial_is_unharmed(
    model: str, status: str, check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    before = used()
    trials = records(tmp_path, FAULTS.format(model=model, device=DEVICE), gpu_report)[MEASURE]
    ended = {str(trial.case.workload.options["model"]): trial for trial in trials}
    check.figure("status", ended[model].status.value)
    check.figure("reason", ended[model].reason[:200])
    check.figure("wall", ended[model].wall_s, "s")
    check.figure("GPU memory that is still in use", used() - before, "B")
    assert ended[model].status == status, ended[model].reason
    assert ended[SMALL].status == "measured", ended[SMALL].reason
    failure = ended[model].failure
    # no rank is blamed for a hang without evidence that the others wait for it
    assert failure and (failure.rank == 0 or status == "hang")
    assert model != "on_gpu:Sleeps" or "on_gpu.py" in failure.log, failure.log
    if status == "oom_gpu":
        assert "; largest tensors: " in ended[model].reason
        assert any(tmp_path.rglob("rank0.memory.pickle"))
    assert used() - before < 1e9


@pytest.mark.cuda
@pytest.mark.minutes(4)
def test_too_large_a_batch_is_out_of_memory_in_every_round(
    check: Check, gpu_report: Report, tmp_path: Path
) -> None:
    """The logits alone are larger than the GPU."""
    batch = 1 << (memory() // (1024 * 50257 * 2)).bit_length()
    suite = (
        f"{work('{preset: gpt2-small, seq_len: 1024}', 2)}strategies: [single]\nprecision: bf16\n"
        f"axes: {{batch.global_batch_size: [2, {batch}]}}\nmeasure: {{warmup: 1, steps: 2, trials: 2}}\n"
    )
    trials = records(tmp_path, suite, gpu_report)[MEASURE]
    ended: dict[int, set[str]] = {}
    for trial in trials:
        ended.setdefault(size(trial), set()).add(trial.status.value)
    check.figure("statuses by batch", str(ended))
    assert ended == {2: {"measured"}, batch: {"oom_gpu"}}, [trial.reason for trial in trials]


def size(record: Record) -> int:
    return record.case.batch.global_batch_size


def used() -> int:
    """Bytes in use on the first GPU; 0 without one."""
    if REHEARSAL:
        return 0
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def memory() -> int:
    """Bytes that the first GPU has."""
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
