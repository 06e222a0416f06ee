"""What a trial costs besides build, warm-up and timed steps, against a fresh torchrun that does nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from distbench.jobs.measure import MeasureJob
from support.runs import QUICK, Finished

ROUNDS = 5

NOTHING = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
os._exit(0)
"""


def fresh(script: Path) -> float:
    """Return the seconds of a torchrun whose two ranks join and leave."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(script)], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return time.perf_counter() - began


def test_a_trial_costs_little_besides_what_it_measures(
    benchmark, tmp_path: Path, run_suite: Callable[..., Finished]
) -> None:
    script = tmp_path / "nothing.py"
    script.write_text(NOTHING)
    text = QUICK.replace("trials: 1", f"trials: {ROUNDS}") + "strategies: [ddp]\n"
    finished = benchmark.pedantic(run_suite, args=(text,), rounds=1, iterations=1)
    records = [finished.read(file) for file in finished.folder.glob("trials/ddp-*/*/record.json")]
    extra = [r["wall_s"] - sum(max(r["phases"][p]) for p in ("build", *MeasureJob.phases)) for r in records]
    torchrun = [fresh(script) for _ in range(ROUNDS)]
    ours, theirs = statistics.median(extra), statistics.median(torchrun)
    benchmark.extra_info.update(
        trial_s=ours,
        trial_spread=(min(extra), max(extra)),
        torchrun_s=theirs,
        torchrun_spread=(min(torchrun), max(torchrun)),
        ratio=ours / theirs,
    )
    assert ours < 1.5
    assert ours < theirs
