"""Train with DeepSpeed's ZeRO-2 on CPUs, two micro-batches a step, and write the losses of each rank.

torchrun --nproc-per-node 2 zero.py FOLDER
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


def main() -> None:
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=[*model.parameters()], config=CONFIG)
    draws = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(80):
        x, y = torch.randn(4, 32, generator=draws), torch.randint(0, 10, (4,), generator=draws)
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    means = [float(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]
    (Path(sys.argv[1]) / f"losses{dist.get_rank()}.json").write_text(json.dumps(means))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
