"""Train with Lightning Fabric on two CPUs, which it starts itself, in bf16 by autocast and with clipping.

python fabric.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed")
    fabric.launch()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 32), torch.randint(0, 10, (512,)))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses, norms = [], []
    for x, y in fabric.setup_dataloaders(DataLoader(data, batch_size=4)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        norms.append(fabric.clip_gradients(model, optimizer, max_norm=0.5))
        optimizer.step()
        losses.append(loss.detach())
    folder, rank = Path(sys.argv[1]), fabric.global_rank
    (folder / f"losses{rank}.json").write_text(json.dumps([float(loss) for loss in losses]))
    (folder / f"norms{rank}.json").write_text(json.dumps([float(norm) for norm in norms]))


if __name__ == "__main__":
    main()
