"""Train in one process without end, or until something happens in step 30.

python ends.py [exit | raise | kill | never | without-optimizer | one-rank]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

END = sys.argv[1]


def main() -> None:
    if END == "one-rank":
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            dist.barrier()
            return
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10**9 if END == "never" else 60):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if END == "without-optimizer":
            continue
        optimizer.step()
        optimizer.zero_grad()
        if step == 30 and END == "exit":
            os._exit(7)
        if step == 30 and END == "raise":
            raise ValueError("no more data")
        if step == 30 and END == "kill":
            os.kill(os.getpid(), 9)
    if END == "one-rank":
        dist.barrier()


if __name__ == "__main__":
    main()
