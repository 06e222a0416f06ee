"""Whether the fork server that a trial is forked from shows in its pace: a variance between parents.

Several parents live at once, and each round makes one trial from every one of them, in an order of its own,
so that a drift of the machine is in all of them. Takes some five minutes; by hand, from the root of the
repository:

    python tests/benchmarks/warm_parents.py [--parents 8] [--rounds 12]
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from distbench import plan
from distbench.analysis.statistics.distributions import chi2_quantile
from distbench.plan import PlannedTrial
from distbench.record.run_folder import Run, RunInfo
from distbench.run import Observer, StopRequest, TrialRunner
from distbench.suite import load_suite
from distbench.system.machine import machine_facts

SUITE = """
workload: {transformer: {preset: tiny, seq_len: 64}}
data: text
batch: {global_batch_size: 16}
strategies: [single]
world_sizes: [1]
device: cpu
metrics: [steptime, throughput]
measure: {warmup: 2, steps: 20, profile_steps: 0}
"""


def log_times(folder: Path, parents: int, rounds: int) -> np.ndarray:
    """Logarithms of the median step time of trials: (rounds, parents)."""
    file = folder / "suite.yaml"
    file.write_text(SUITE)
    suite = load_suite(file)
    made = plan.make_plan(suite)
    case = made.cases[0].case
    random, times = np.random.default_rng(1), np.zeros((rounds, parents))
    with ExitStack() as stack:
        benches = []
        for i in range(parents):
            info = RunInfo.create(suite, made.cases, ["warm_parents"], machine_facts())
            run = Run.create_at(folder / str(i), info, suite.text)
            benches.append(stack.enter_context(TrialRunner.open(run, suite, Observer(), StopRequest())))
            benches[i].prepare([case])
            benches[i].make(PlannedTrial(case, rounds))
        for round_ in range(rounds):
            for i in random.permutation(parents):
                record = benches[i].make(PlannedTrial(case, round_))
                times[round_, i] = np.log(np.median(record.samples["step_s"]))
    return times


def between(times: np.ndarray) -> tuple[float, float, float, float]:
    """Spread of a trial, F ratio of parents, standard deviation between parents, and its upper 95% bound.

    Two-way analysis of variance without interaction (Fisher 1925), by rounds and parents; the bound takes
    the mean square between parents at the 5% quantile of its chi-squared.
    """
    rounds, parents = times.shape
    parent = times.mean(axis=0) - times.mean()
    residual = times - times.mean(axis=1, keepdims=True) - parent
    within = float((residual**2).sum() / ((rounds - 1) * (parents - 1)))
    mean_square = rounds * float((parent**2).sum()) / (parents - 1)
    highest = mean_square * (parents - 1) / chi2_quantile(0.05, parents - 1)
    deviations = [max(0.0, (square - within) / rounds) ** 0.5 for square in (mean_square, highest)]
    return within**0.5, mean_square / within, deviations[0], deviations[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        spread, ratio, deviation, highest = between(log_times(Path(name), asked.parents, asked.rounds))
    print(  # noqa: T201
        f"{asked.parents} parents, {asked.rounds} rounds: spread of a trial {spread:.2%}, F = {ratio:.2f}, "
        f"between parents {deviation:.2%}, at most {highest:.2%} (95%)"
    )


if __name__ == "__main__":
    main()
