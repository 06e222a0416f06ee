"""A timed step is what the same loop written by hand takes, and what a wall clock says."""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path

import pytest
from gpu_runs import DEVICE, measured, work, worker
from scipy import stats

from support.gpu_report import REHEARSAL, Check, Report

LOOPS = Path(__file__).parent.parent / "benchmarks" / "loops.py"
OF_DEEPSPEED = partial(pytest.param, marks=pytest.mark.needs("deepspeed"))
PAIRS, STEPS = (2, 2) if REHEARSAL else (30, 20)


@pytest.mark.minutes(4)
@pytest.mark.parametrize("strategy", ["ddp", OF_DEEPSPEED("zero2"), "fsdp", "fsdp+offload"])
def test_a_timed_step_costs_what_the_same_loop_by_hand_costs(
    strategy: str, check: Check, tmp_path: Path
) -> None:
    seconds = worker(LOOPS, strategy, str(PAIRS), str(STEPS), str(tmp_path), DEVICE)
    mean, low, high = ratio(seconds["harness"], seconds["hand"])
    check.figure("harness over hand", mean)
    check.figure("95 % interval", f"{low:.4f} to {high:.4f}")
    check.figure("step by hand", statistics.mean(seconds["hand"]) / STEPS, "s")
    window, _, _ = ratio(seconds["window"], seconds["harness"])
    check.figure("wall of the window over the sum of its steps", window)
    assert REHEARSAL or low < 1.02
    assert REHEARSAL or 0.999 < window < 1.01


@pytest.mark.minutes(4)
@pytest.mark.parametrize("otherwise", [OF_DEEPSPEED("zero2:timer"), "ddp:standing"])
def test_what_the_loop_by_hand_does_otherwise_is_told(otherwise: str, check: Check, tmp_path: Path) -> None:
    """DeepSpeed's timer, which is on unless a user turns it off; and a batch that is never made or moved."""
    seconds = worker(LOOPS, otherwise, str(PAIRS), str(STEPS), str(tmp_path), DEVICE)
    mean, low, high = ratio(seconds["harness"], seconds["hand"])
    check.figure(f"harness over {otherwise} by hand", mean)
    check.figure("95 % interval", f"{low:.4f} to {high:.4f}")
    # a batch costs at most a twentieth of a step, and no timer makes a step faster
    assert REHEARSAL or low < (1.05 if otherwise == "ddp:standing" else 1.02)


@pytest.mark.minutes(4)
def test_telemetry_costs_a_step_nothing(check: Check, gpu_report: Report, tmp_path: Path) -> None:
    steps = 5 if REHEARSAL else 400
    head = f"{work()}strategies: [single]\nprecision: bf16\nmeasure: {{steps: {steps}, trials: 1}}\n"
    metrics = {"with": "[steptime, telemetry]", "without": "[steptime]"}
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for number, key in enumerate(["with", "without", "without", "with", "with", "without"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        record = measured(folder, f"{head}metrics: {metrics[key]}\n", gpu_report)["single"]
        seconds[key].append(record.values["step_s"])
    mean, low, high = ratio(seconds["with"], seconds["without"])
    check.figure("with telemetry over without", mean)
    check.figure("95 % interval", f"{low:.4f} to {high:.4f}")
    assert REHEARSAL or low < 1.01


def ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios, with its 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
