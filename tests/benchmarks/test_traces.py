"""Reading a trace: at most a small multiple of what the standard library needs to parse the same file."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from distbench.analysis.traces.job_trace import read_job
from support.chrome_traces import ChromeTrace

MOST = 4.0
"""CPU time over that of ``json.loads``."""
STEPS, KERNELS, PAIRS = 50, 1_000, 3


def written(folder: Path) -> Path:
    """A trace of 150,000 events and 37 MB, with shapes as torch records them."""
    trace = ChromeTrace()
    shapes = {"Input Dims": [[4096, 1024], [1024, 4096]], "Input type": ["c10::BFloat16"] * 2, "Ev Idx": 1}
    for step in range(STEPS):
        begin = step * 100.0
        trace.step(step, begin, begin + 99)
        for i in range(KERNELS):
            at = begin + i * 0.09
            trace.op("aten::mm", at, at + 0.05, **shapes)
            trace.kernel("void cutlass::Kernel2<cutlass_80_tensorop>" * 4, at + 0.01, at + 0.05, at + 0.13)
    return trace.write(folder / "rank0.json")


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def test_reading_a_trace_takes_a_small_multiple_of_parsing_it(tmp_path: Path) -> None:
    file = written(tmp_path)
    pairs = [
        (cpu_seconds(lambda: read_job([file])), cpu_seconds(lambda: json.loads(file.read_bytes())))
        for _ in range(PAIRS)
    ]
    ratio = statistics.median(own / plain for own, plain in pairs)
    assert ratio <= MOST, f"{ratio:.2f} times as long as json.loads"
