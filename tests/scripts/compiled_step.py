"""Train with DDP on CPUs by a compiled function, which hides the model from hooks.

torchrun --nproc-per-node 2 compiled_step.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="aot_eager")
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    draws = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(60):
        x, y = torch.randn(4, 32, generator=draws), torch.randint(0, 10, (4,), generator=draws)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    (Path(sys.argv[1]) / f"losses{rank}.json").write_text(json.dumps([float(loss) for loss in losses]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
