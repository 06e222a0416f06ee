"""The tables of docs/gate.md: how often a gate stops a true loss, raises a false alarm, and at what cost.

Takes a minute on one core; by hand, from the root of the repository:

    python tests/benchmarks/gate_tables.py [--series 6000] [--seed 1]

A gate is a pair of independent series, as its second one starts fresh processes. The efficiency is judged as
the gate judges it, beside the throughput of the same blocks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from distbench.gate.sequential_test import TIME_ESTIMATOR, PairRule, detectable_loss, gate_power
from distbench.suite.gate import Tolerances
from support import launch_noise
from support.gate_simulation import Ended, efficiency_alone, ended
from support.launch_noise import NOISY, QUIET, TYPICAL, Noise

LEVELS = {"quiet": QUIET, "typical": TYPICAL, "noisy": NOISY}
CASES = 20
PACE, EFFICIENCY = Tolerances().tokens_per_s or 0.03, Tolerances().efficiency or 0.05


def row(name: str, series: dict[float, Ended]) -> str:
    """Line of the table: shares of gates that are stopped, by true loss, and pairs."""
    none = series[0.0]
    cells = [f"{each.share('regressed') ** 2:7.2%}" for each in series.values()]
    false = 1 - (1 - none.share("regressed") ** 2) ** CASES
    praise = 1 - (1 - none.share("improved") ** 2) ** CASES
    pairs = f"{np.mean(none.pairs):4.1f} {2 * np.mean(series[0.06].pairs):4.1f}"
    return (
        f"{name:32} {' '.join(cells)}  suite of {CASES}: alarm {false:.2%} praise {praise:.2%}  "
        f"undecided {none.share('inconclusive'):.1%}  pairs {pairs}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    losses = (0.0, 0.02, 0.03, 0.04, 0.06, 0.10)
    print("stopped at", ", ".join(f"{loss:.0%}" for loss in losses))  # noqa: T201
    for level, noise in LEVELS.items():
        drawn = blocks(noise, asked.series, asked.seed)
        pace = drawn[..., 1]
        for limit in (PACE, EFFICIENCY):
            found = {loss: ended(pace + np.log1p(loss), PairRule(limit)) for loss in losses}
            print(row(f"{level}, throughput, {limit:.0%}", found), flush=True)  # noqa: T201
        for limit in (PACE, EFFICIENCY):
            found = {}
            for loss in losses:
                shifted = drawn.copy()
                shifted[..., 1] += np.log1p(loss)
                found[loss] = efficiency_alone(shifted, PairRule(limit))
            print(row(f"{level}, efficiency alone, {limit:.0%}", found), flush=True)  # noqa: T201
        _, spread = TIME_ESTIMATOR.mean(pace.ravel().tolist())
        formula = ", ".join(f"{gate_power(spread, loss, PairRule(PACE)):.1%}" for loss in losses)
        print(f"{level}: by the formula {formula}; 90% at {detectable_loss(spread, PairRule(PACE)):.1%}")  # noqa: T201


def blocks(noise: Noise, series: int, seed: int) -> np.ndarray:
    """Log ratios of blocks, (series, pairs, one or N devices), drawn a thousand at a time."""
    random = np.random.default_rng(seed)
    most = PairRule(PACE).max_pairs
    parts = [
        launch_noise.blocks(noise, min(1000, series - at), most, random) for at in range(0, series, 1000)
    ]
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
