"""Train a compiled MLP with FSDP1 on CPUs, its computation in bf16, with clipped gradients.

torchrun --nproc-per-node 2 fully_sharded_v1.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sharded = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    model = torch.compile(sharded, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    draws = torch.Generator().manual_seed(rank)
    losses, norms = [], []
    for _ in range(60):
        x, y = torch.randn(4, 32, generator=draws), torch.randint(0, 10, (4,), generator=draws)
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        norms.append(sharded.clip_grad_norm_(0.5))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    folder = Path(sys.argv[1])
    (folder / f"losses{rank}.json").write_text(json.dumps([float(loss) for loss in losses]))
    (folder / f"norms{rank}.json").write_text(json.dumps([float(norm) for norm in norms]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
