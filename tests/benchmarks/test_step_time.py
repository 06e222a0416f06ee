"""The harness must not be felt in the step time: within 2 % of the same loop written by hand."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from distbench.core import registry
from distbench.core.case import PluginChoice

# many short windows: the noise of a shared machine is in the window, and pairs average it out
PAIRS, STEPS = 80, 3


def windows(name: str, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of alternating windows, measured by two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(Path(__file__).with_name("loops.py")), name, str(PAIRS), str(STEPS), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    environment["TORCH_EXTENSIONS_DIR"] = registry.create_plugin(
        "strategies", PluginChoice("zero")
    ).extensions_folder("cpu")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"harness"')] or [done.stderr]
    return dict(json.loads(line))


@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero2"])
def test_a_timed_step_costs_what_the_same_loop_by_hand_costs(benchmark, tmp_path: Path, name: str) -> None:
    seconds = benchmark.pedantic(windows, args=(name, tmp_path), rounds=1, iterations=1)
    ratios = [math.log(a / b) for a, b in zip(seconds["harness"], seconds["hand"], strict=True)]
    half = stats.t.ppf(0.975, PAIRS - 1) * statistics.stdev(ratios) / math.sqrt(PAIRS)
    mean = statistics.mean(ratios)
    benchmark.extra_info.update(
        ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), pairs=PAIRS
    )
    assert math.exp(mean - half) < 1.02, f"slower than by hand: {benchmark.extra_info}"
