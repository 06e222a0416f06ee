"""How often rounding alone takes an honest training beyond the limits of ``analysis/tolerance.py``.

A training of 25 steps is held against others from the same weights on the same batches that only sum in
another order: in 2, 4 or 16 micro-batches, or with the rows of each batch in another order. Takes some 15
minutes on one core; by hand, from the root of the repository:

    python tests/benchmarks/honest_losses.py [--seeds 4] [--compute fp32 bf16] [--models 'deep decoder']
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from emulated import BIASED, CLASSIFIER, DECODER, emulated, laboratory

from distbench import registry
from distbench.analysis.tolerance import BETWEEN_ARMS, BETWEEN_STRATEGIES
from distbench.case import Batch, Case, Choice, Dtype, Optimizer
from distbench.strategies.base import Setting
from distbench.worker.feed import Feed
from distbench.workloads import weights

STEPS, ROWS = 25, 16
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DEEP = Choice(
    "transformer",
    {"dim": 64, "depth": 6, "heads": 4, "kv_heads": 2, "ffn_dim": 128, "seq_len": 32, "tied": False},
)
MODELS = {"small decoder": DECODER, "deep decoder": DEEP, "two layers": BIASED, "classifier": CLASSIFIER}


def losses(case: Case, folder: Path, order: int | None = None) -> np.ndarray:
    """Losses of a training, (steps,); *order* permutes the rows of each batch."""
    workload = registry.make("workloads", case.workload)
    file = folder / f"{'-'.join(map(str, case.workload.options.values()))}-{case.seed}.safetensors"
    if not file.exists():
        weights.save(workload, case.seed, file, case.precision.compute)
    torch.manual_seed(case.seed)
    setting = Setting(case, workload, file, torch.device("cpu"), 0, 1, folder)
    engine, feed = registry.make("strategies", case.strategy).build(setting), Feed(setting, order)
    found = []
    for step in range(STEPS):
        found.append(np.mean([float(engine.forward_backward(part)) for part in feed.micro_batches(step)]))
        engine.step()
    engine.close()
    return np.array(found)


def deviations(model: Choice, compute: Dtype, rate: float, seed: int, folder: Path) -> np.ndarray:
    """Deviations of trainings that sum in another order, as fractions of the largest loss so far."""
    case = emulated(workload=model, compute=compute, seed=seed, optimizer=Optimizer(lr=rate))
    case = dataclasses.replace(case, strategy=Choice("single"), world_size=1)
    plain, *parts = (
        losses(dataclasses.replace(case, batch=Batch(ROWS, ROWS // count, count)), folder)
        for count in (1, 2, 4, 16)
    )
    whole = dataclasses.replace(case, batch=Batch(ROWS, ROWS, 1))
    moved = [losses(whole, folder, order) for order in (1, 2)]
    return np.abs(np.array([*parts, *moved]) - plain) / np.maximum.accumulate(np.abs(plain))


def row(name: str, compute: Dtype, rate: float, seeds: int, folder: Path) -> str:
    """Line of the table: shares of trainings that are beyond each limit at any step."""
    of_seeds = [deviations(MODELS[name], compute, rate, seed, folder) for seed in range(1, seeds + 1)]
    found = np.concatenate(of_seeds)
    limits = [law.at(compute, np.arange(STEPS)) for law in (BETWEEN_STRATEGIES, BETWEEN_ARMS)]
    shares = " | ".join(f"{(found > limit).any(axis=1).mean():.0%}" for limit in limits)
    return f"| {compute} | {name} | {rate:g} | {shares} | {found.max():.0e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--compute", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    asked = parser.parse_args()
    print("| compute | model | rate | beyond: strategies | beyond: arms | largest deviation |")  # noqa: T201
    for compute in asked.compute:
        with tempfile.TemporaryDirectory() as folder, laboratory(Path(folder)):
            for name, rate in itertools.product(asked.models, RATES):
                print(row(name, compute, rate, asked.seeds, Path(folder)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
