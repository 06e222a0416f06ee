"""Checkpoints of every strategy on a GPU go on as the same training, and engines give their memory back."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runs import DEVICE, SMALL, STRATEGIES, work, worker

from support.gpu_report import REHEARSAL, Check
from support.runs import run_in

ENGINES = Path(__file__).parent / "engines.py"
# whose optimizer has a kernel that wants the updates it has counted on the GPU
RESUMED = STRATEGIES.replace("[single,", "[single, {ddp: {sharded_optimizer: true}},")


@pytest.mark.minutes(8)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_strategy_goes_on_from_its_checkpoints(precision: str, check: Check, tmp_path: Path) -> None:
    suite = (
        f"{work(SMALL, 8)}{RESUMED}precision: {precision}\nmeasure: {{trials: 0}}\n"
        "checkpoint: {steps_before: 2, steps_after: 2}\n"
    )
    done = run_in(tmp_path, suite)
    told = [(each["training"], each["verdict"]) for each in done.checkpoints]
    for pair in sorted(set(told)):
        check.figure(" ".join(pair), told.count(pair))
    assert done.code == 0 and told, done.errors
    assert {"sharded", "full", "exchanged"} <= {training for training, _ in told}


@pytest.mark.minutes(4)
def test_a_closed_engine_leaves_nothing_on_the_gpu(check: Check, tmp_path: Path) -> None:
    left = worker(ENGINES, str(tmp_path), DEVICE)
    for label, sizes in left.items():
        check.figure(f"{label} allocated while it stands", sizes["built"], "B")
        check.figure(f"{label} left behind", sizes["closed"], "B")
    assert left
    # buffers of cuBLAS and NCCL stay; a model's states would be 1.3 GB
    assert REHEARSAL or {label for label, sizes in left.items() if sizes["closed"] > 64e6} == set()
