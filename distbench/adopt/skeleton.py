"""``--skeleton``: a training script around the functions that ``--as torch`` writes."""

from __future__ import annotations

from distbench.adopt.torch_script import FILE as FUNCTIONS
from distbench.core.case import Case

FILE = "train.py"

_TEXT = '''\
"""A training script around {functions}: it runs without changes. Replace build_model, batches and loss_of."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import {module} as adopted

UPDATES = 10
MICRO_BATCH, ACCUMULATION = {micro}, {accumulation}  # as measured: samples of a pass, passes of an update
LENGTH, WORDS, WIDTH = 32, 64, 64


def build_model():
    """Return a model, and those of its modules that are sharded and checkpointed one by one."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS)), layers


def batches(rank, device):
    """Yield the micro-batches of a rank: each rank must get samples of its own."""
    torch.manual_seed(rank)
    for _ in range(UPDATES * ACCUMULATION):
        first = torch.randint(WORDS, (MICRO_BATCH, 1), device=device)
        yield (first + torch.arange(LENGTH + 1, device=device)) % WORDS


def loss_of(model, batch):
    """Return the mean loss of a micro-batch, in fp32."""
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def main():
    device = adopted.setup()
    rank = dist.get_rank() if dist.is_initialized() else 0
    model, layers = build_model()
    model, optimizer = adopted.prepare(model, layers, device)
    for update, loss in enumerate(adopted.train(model, optimizer, batches(rank, device), loss_of), 1):
        if rank == 0:
            print(f"update {{update}}: loss of this rank {{loss.item():.4f}}", flush=True)
    if dist.is_initialized():
        # no rank may leave while another still communicates with it
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        # an interpreter that exits normally after gloo's teardown sometimes aborts: atexit is left out
        os._exit(0)


if __name__ == "__main__":
    main()
'''


def training_script(case: Case) -> str:
    """``train.py`` for *case*: trains a small model on synthetic data, on as many ranks as the case had."""
    batch = case.batch
    return _TEXT.format(
        functions=FUNCTIONS,
        module=FUNCTIONS.removesuffix(".py"),
        micro=batch.micro_batch_size,
        accumulation=batch.gradient_accumulation_steps,
    )
