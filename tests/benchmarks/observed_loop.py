"""Times a training loop with and without the measurement of scripts in turn, in one process.

    python observed_loop.py PAIRS STEPS FOLDER

The windows alternate (A B B A ...). A measured window is inside the timed steps, and has been warmed up.
Prints the CPU seconds of each window as JSON: those of all threads, which other processes don't prolong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distbench.ipc.script_files import ScriptSettings
from distbench.worker.scripts.session import ScriptSession


def main(pairs: int, steps: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,)))
    layers = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=256)
    batches = iter(loader)

    def train(count: int) -> None:
        nonlocal batches
        for _ in range(count):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def window() -> float:
        began = time.process_time()
        train(steps)
        return time.process_time() - began

    def observed() -> float:
        settings = ScriptSettings(str(folder), warmup=1, steps=10**6, profile_steps=0, stops=False)
        session = ScriptSession(settings, 0, 1, optimizer)
        session.begin()
        train(4)
        seconds = window()
        session.detach()
        return seconds

    def alone() -> float:
        train(4)
        return window()

    observed(), alone()
    seconds: dict[str, list[float]] = {"observed": [], "alone": []}
    for pair in range(pairs):
        for measured in (True, False) if pair % 2 == 0 else (False, True):
            seconds["observed" if measured else "alone"].append(observed() if measured else alone())
    sys.stdout.write(json.dumps(seconds))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
