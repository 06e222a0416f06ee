"""What a trial on two nodes costs besides build, warm-up and timed steps, against a fresh srun and torchrun.

On the bench of network namespaces (root, Slurm); the three take turns, so that each meets the same machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distbench.jobs.measure import MeasureJob
from distbench.record import Record
from distbench.record.run_folder import Run
from support.network_nodes import Bench, SlurmBench
from support.runs import MODELS, QUICK, Done

ROUNDS, TRIALS = 3, 5
SUITE = QUICK.replace("trials: 1", f"trials: {TRIALS}") + "strategies: [ddp]\n"

NOTHING = """
import os, torch, torch.distributed as dist
rank = os.environ.get("RANK", os.environ["SLURM_PROCID"])
os.environ.update(RANK=rank, WORLD_SIZE="2")
dist.init_process_group("gloo")
dist.barrier()
os._exit(0)
"""


@pytest.fixture(scope="module")
def slurm(bench: Bench) -> Iterator[SlurmBench]:
    """Slurm on two nodes with one core each, so that each takes one rank."""
    made = SlurmBench(bench, cpus=1)
    yield made
    made.close()


def besides(record: Record) -> float:
    """Seconds of a trial besides build, warm-up and timed steps."""
    return record.wall_s - sum(max(record.phases[phase]) for phase in ("build", *MeasureJob.phases))


def test_a_trial_on_two_nodes_costs_little_besides_what_it_measures(
    benchmark, bench: Bench, slurm: SlurmBench, tmp_path: Path, distbench: Callable[..., Done]
) -> None:
    suite, script = tmp_path / "suite.yaml", tmp_path / "nothing.py"
    suite.write_text(SUITE)
    script.write_text(NOTHING)
    first = bench.address(bench.nodes[0])
    step = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--chdir={MODELS}"]
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:29511", "--nnodes=2", "--nproc-per-node=1"]
    fresh = {
        "srun": [*step, f"--export=ALL,MASTER_ADDR={first},MASTER_PORT=29510", sys.executable, str(script)],
        "torchrun": [*step, sys.executable, "-m", "torch.distributed.run", *rendezvous, str(script)],
    }
    seconds: dict[str, list[float]] = {"trial": [], "srun": [], "torchrun": []}

    def rounds() -> None:
        for turn in range(ROUNDS):
            out = tmp_path / str(turn)
            words = ["run", str(suite), "--on", "slurm", "--nodes", "2", "--out", str(out), "--quiet"]
            done = distbench(*words, **slurm.variables)
            assert done.returncode == 0, done.stderr
            seconds["trial"] += [besides(record) for record in Run(next(out.iterdir())).records()]
            for name, command in fresh.items():
                began = time.perf_counter()
                slurm.call(*command)
                seconds[name].append(time.perf_counter() - began)

    benchmark.pedantic(rounds, rounds=1, iterations=1)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    spreads = {f"{name}_spread": (min(each), max(each)) for name, each in seconds.items()}
    ratios = {f"to_{name}": medians["trial"] / medians[name] for name in fresh}
    benchmark.extra_info.update({f"{name}_s": each for name, each in medians.items()} | spreads | ratios)
    assert medians["trial"] < medians["srun"] < medians["torchrun"]
