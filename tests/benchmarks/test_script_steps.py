"""Measuring a script must not be felt in its steps: within 1 % of its CPU time without."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

from scipy import stats

PAIRS, STEPS = 60, 8


def windows(folder: Path) -> dict[str, list[float]]:
    """CPU seconds of alternating windows with and without the measurement."""
    command = [sys.executable, str(Path(__file__).with_name("observed_loop.py")), str(PAIRS), str(STEPS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def test_a_measured_step_of_a_script_costs_what_it_costs_alone(benchmark, tmp_path: Path) -> None:
    seconds = benchmark.pedantic(windows, args=(tmp_path,), rounds=1, iterations=1)
    ratios = [math.log(a / b) for a, b in zip(seconds["observed"], seconds["alone"], strict=True)]
    half = stats.t.ppf(0.975, PAIRS - 1) * statistics.stdev(ratios) / math.sqrt(PAIRS)
    mean = statistics.mean(ratios)
    benchmark.extra_info.update(
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        step_ms=1000 * statistics.median(seconds["alone"]) / STEPS,
    )
    assert math.exp(mean - half) < 1.01, f"slower than alone: {benchmark.extra_info}"
