"""Train with Accelerate on CPUs, two micro-batches a step, and write the losses of each rank.

torchrun --nproc-per-node 2 accelerated.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 32), torch.randint(0, 10, (1024,)))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    means = [float(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]
    file = Path(sys.argv[1]) / f"losses{accelerator.process_index}.json"
    file.write_text(json.dumps(means))
    accelerator.end_training()


if __name__ == "__main__":
    main()
