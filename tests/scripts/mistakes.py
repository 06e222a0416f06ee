"""A training with DDP on CPUs that makes the mistakes that its arguments name.

torchrun --nproc-per-node 2 mistakes.py [leak] [item] ...
"""

import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

MISTAKES = set(sys.argv[1:])


class Vectors(IterableDataset):
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        draws = torch.Generator().manual_seed(self.seed)
        while True:
            if "slow-loader" in MISTAKES:
                time.sleep(0.004)
            yield torch.randn(32, generator=draws)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))
        if "unused" in MISTAKES:
            self.forgotten = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank if "apart" in MISTAKES else 0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30 if "nan" in MISTAKES else 1e-3)
    if "apart" not in MISTAKES:
        cap = 0.001 if "tiny-buckets" in MISTAKES else None
        model = DistributedDataParallel(model, bucket_cap_mb=cap, find_unused_parameters="unused" in MISTAKES)
    passes = 2 if "accumulate" in MISTAKES else 1
    batches = iter(DataLoader(Vectors(0 if "same-rows" in MISTAKES else rank), batch_size=4))
    kept, shown = [], 0.0
    for step in range(60):
        optimizer.zero_grad()
        for _ in range(passes):
            x = next(batches)
            loss = (model(x) - x).square().mean() / passes
            loss.backward()
        if "slow-rank" in MISTAKES and rank == 1:
            torch.randn(1500, 1500) @ torch.randn(1500, 1500)
        if "slower" in MISTAKES:
            time.sleep(0.001 * step)
        if "leak" in MISTAKES:
            kept.append(torch.ones(2**19))
        if "item" in MISTAKES:
            shown += loss.item()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
