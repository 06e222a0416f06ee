"""Train an MLP with FSDP2 on CPUs, its computation in bf16, with clipped gradients.

torchrun --nproc-per-node 2 fully_sharded.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(Block(32), Block(32), nn.Linear(32, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draws = torch.Generator().manual_seed(rank)
    losses, norms = [], []
    for _ in range(60):
        x, y = torch.randn(4, 32, generator=draws), torch.randint(0, 10, (4,), generator=draws)
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    folder = Path(sys.argv[1])
    (folder / f"losses{rank}.json").write_text(json.dumps([float(loss) for loss in losses]))
    (folder / f"norms{rank}.json").write_text(json.dumps([float(norm) for norm in norms]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
