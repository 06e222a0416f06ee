"""Times the harness's loop and one written by hand in turn, in the same processes: one rank of it.

    python loops.py ddp|fsdp|zero2 PAIRS STEPS FOLDER

Both train the same model on the same data with the same optimizer; the windows alternate
(A B B A ...), so that a machine whose speed drifts slows both alike. Rank 0 prints the seconds of
each window as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from distbench import registry
from distbench.case import Batch, Case, Choice, Optimizer, Precision
from distbench.strategies.base import Setting
from distbench.trial import Progress, progress_file
from distbench.worker.feed import Feed
from distbench.worker.passes import Loop
from distbench.workloads import weights

STRATEGIES = {"ddp": Choice("ddp"), "fsdp": Choice("fsdp"), "zero2": Choice("zero", {"stage": 2})}
TIMED_METRICS = ("steptime", "convergence", "memory", "throughput")


def main(name: str, pairs: int, steps: int, folder: Path) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    case = Case(
        name=name,
        label=name,
        strategy=STRATEGIES[name],
        workload=Choice("transformer"),
        data=Choice("text"),
        world_size=world_size,
        device="cpu",
        batch=Batch(8, 8 // world_size, 1),
        optimizer=Optimizer(),
        precision=Precision(),
        activation_checkpointing="none",
        threads=1,
        seed=1,
    )
    workload = registry.make("workloads", case.workload)
    initial = folder / "weights.safetensors"
    if rank == 0:
        weights.save(workload, case.seed, initial)
    dist.barrier()
    cpu = torch.device("cpu")
    setting = Setting(case, workload, initial, cpu, rank, world_size, folder)
    feed = Feed(setting)
    strategy = registry.make("strategies", case.strategy)
    loop = Loop(setting, strategy, strategy.build(setting), feed)
    metrics = {metric: registry.load("metrics", metric)() for metric in TIMED_METRICS}
    for metric in metrics.values():
        metric.install()
    progress = Progress(progress_file(folder, rank))

    def harness() -> float:
        # what its own clock says, as a user will see it
        loop.run("time", steps, metrics, progress)
        return sum(loop.delivery.samples["step_s"])

    by_hand = HAND_WRITTEN[name](setting, feed)

    def hand() -> float:
        dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            by_hand(step)
        return time.perf_counter() - began

    harness(), hand()
    seconds: dict[str, list[float]] = {"harness": [], "hand": []}
    for pair in range(pairs):
        order = [("harness", harness), ("hand", hand)]
        for key, run in order if pair % 2 == 0 else order[::-1]:
            seconds[key].append(run())
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    dist.barrier()
    os._exit(0)


Step = Callable[[int], Any]


def ddp_by_hand(setting: Setting, feed: Feed) -> Step:
    model = DistributedDataParallel(weights.loaded(setting.workload, setting.weights, setting.device))
    return plain_step(model, feed)


def fsdp_by_hand(setting: Setting, feed: Feed) -> Step:
    model = weights.loaded(setting.workload, setting.weights, setting.device)
    for layer in setting.workload.layers(model):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=False)
    return plain_step(model, feed)


def plain_step(model: torch.nn.Module, feed: Feed) -> Step:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )

    def step(number: int) -> None:
        (batch,) = feed.micro_batches(number)
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(batch["input_ids"]).flatten(0, 1).float(), batch["labels"].flatten())
        loss.backward()
        optimizer.step()

    return step


def zero2_by_hand(setting: Setting, feed: Feed) -> Step:
    import deepspeed

    from distbench.strategies.zero.config import configuration, for_layers

    model = weights.loaded(setting.workload, setting.weights, setting.device)
    unit = max(sum(p.numel() for p in layer.parameters()) for layer in setting.workload.layers(model))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    strategy = registry.make("strategies", setting.case.strategy)
    config = configuration(strategy, setting.case, for_layers(strategy, unit))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )

    def step(number: int) -> None:
        (batch,) = feed.micro_batches(number)
        logits = engine(batch["input_ids"])
        engine.backward(cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten()))
        engine.step()

    return step


HAND_WRITTEN = {"ddp": ddp_by_hand, "fsdp": fsdp_by_hand, "zero2": zero2_by_hand}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
