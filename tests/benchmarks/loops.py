"""Times the harness's loop and one written by hand in turn, in the same processes: one rank of it.

    python loops.py ddp|fsdp|zero2|... PAIRS STEPS FOLDER [DEVICE]

Both train the same model on the same data with the same optimizer; the windows alternate
(A B B A ...), so that a machine whose speed drifts slows both alike. Rank 0 prints the seconds of
each window as JSON. After a colon stands what the hand-written loop does otherwise.
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
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from distbench.core import registry
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.ipc.trial_files import ProgressWriter, progress_file
from distbench.strategies.base import RankContext
from distbench.worker.batches import MicroBatchReader
from distbench.worker.passes import PassRunner
from distbench.workloads import weights

STRATEGIES = {
    "ddp": PluginChoice("ddp"),
    "fsdp": PluginChoice("fsdp"),
    "fsdp+offload": PluginChoice("fsdp", {"cpu_offload": True}),
    "zero2": PluginChoice("zero", {"stage": 2}),
}
# a step that keeps a GPU busy, and one for two cores of a CPU
WORK = {"cuda": ({"dim": 1024, "depth": 4, "heads": 16, "kv_heads": 16, "seq_len": 512}, 16), "cpu": ({}, 8)}
TIMED_METRICS = ("steptime", "convergence", "memory", "throughput")


def main(name: str, pairs: int, steps: int, folder: Path, device: str = "cpu") -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    setting = setting_of(STRATEGIES[name.partition(":")[0]], folder, device)
    feed = MicroBatchReader(setting)
    strategy = registry.create_plugin("strategies", setting.case.strategy)
    loop = PassRunner(setting, strategy, strategy.build(setting), feed)
    metrics = {metric: registry.load_plugin("metrics", metric)() for metric in TIMED_METRICS}
    for metric in metrics.values():
        metric.install()
    progress = ProgressWriter(progress_file(folder, rank))
    seconds: dict[str, list[float]] = {"harness": [], "hand": [], "window": []}

    def harness() -> float:
        # what its own clock says, as a user will see it
        loop.run("time", steps, metrics, progress)
        began, ended = loop.result.window
        seconds["window"].append(ended - began)
        return sum(loop.result.samples["step_s"])

    by_hand = HAND_WRITTEN[name](setting, feed)

    def hand() -> float:
        dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            by_hand(step)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    harness(), hand()
    seconds["window"].clear()
    for pair in range(pairs):
        order = [("harness", harness), ("hand", hand)]
        for key, run in order if pair % 2 == 0 else order[::-1]:
            seconds[key].append(run())
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    dist.barrier()
    os._exit(0)


def setting_of(strategy: PluginChoice, folder: Path, device: str) -> RankContext:
    """What a strategy is given; the initial weights are drawn. A collective call."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shape, size = WORK[device]
    case = Case(
        name=strategy.name,
        label=strategy.name,
        strategy=strategy,
        workload=PluginChoice("transformer", shape),
        data=PluginChoice("text"),
        world_size=world_size,
        device=device,
        batch=Batch(size, size // world_size, 1),
        optimizer=OptimizerConfig(),
        precision=PrecisionConfig(),
        activation_checkpointing="none",
        threads=1,
        seed=1,
    )
    workload = registry.create_plugin("workloads", case.workload)
    initial = folder / "weights.safetensors"
    if rank == 0:
        weights.save_initial(workload, case.seed, initial)
    dist.barrier()
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    return RankContext(case, workload, initial, place, rank, world_size, folder)


Step = Callable[[int], Any]


def ddp_by_hand(context: RankContext, feed: MicroBatchReader) -> Step:
    model = DistributedDataParallel(
        weights.load_module(context.workload, context.weights_file, context.device)
    )
    return plain_step(model, feed)


def fsdp_by_hand(context: RankContext, feed: MicroBatchReader, offload: OffloadPolicy | None = None) -> Step:
    policy = offload or OffloadPolicy()
    place = torch.device("cpu") if offload else context.device
    model = weights.load_module(context.workload, context.weights_file, place)
    for layer in context.workload.layers(model):
        fully_shard(layer, reshard_after_forward=True, offload_policy=policy)
    fully_shard(model, reshard_after_forward=False, offload_policy=policy)
    return plain_step(model, feed)


def offloaded_by_hand(context: RankContext, feed: MicroBatchReader) -> Step:
    return fsdp_by_hand(context, feed, CPUOffloadPolicy(pin_memory=context.device.type == "cuda"))


def ddp_on_a_standing_batch(context: RankContext, feed: MicroBatchReader) -> Step:
    """What making and moving the batch costs is the difference to this."""
    standing = feed.micro_batches(0)

    class Standing:
        def micro_batches(self, number: int) -> list[dict[str, torch.Tensor]]:
            return standing

    return ddp_by_hand(context, Standing())  # type: ignore[arg-type]


def plain_step(model: torch.nn.Module, feed: MicroBatchReader) -> Step:
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


def zero2_with_its_timer(context: RankContext, feed: MicroBatchReader) -> Step:
    """DeepSpeed's throughput timer is on unless it is turned off, and synchronises the device."""
    return zero2_by_hand(context, feed, {"timers": {"throughput": {"enabled": True, "synchronized": True}}})


def zero2_by_hand(context: RankContext, feed: MicroBatchReader, more: dict[str, Any] | None = None) -> Step:
    import deepspeed

    from distbench.strategies.zero.build import model_sizes
    from distbench.strategies.zero.config import configuration, sizes_for_model

    model = weights.load_module(context.workload, context.weights_file, context.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    strategy = registry.create_plugin("strategies", context.case.strategy)
    sizes = sizes_for_model(strategy, model_sizes(context.workload))
    config = {**configuration(strategy, context.case, sizes), **(more or {})}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )

    def step(number: int) -> None:
        (batch,) = feed.micro_batches(number)
        logits = engine(batch["input_ids"])
        engine.backward(cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten()))
        engine.step()

    return step


HAND_WRITTEN = {
    "ddp": ddp_by_hand,
    "ddp:standing": ddp_on_a_standing_batch,
    "fsdp": fsdp_by_hand,
    "fsdp+offload": offloaded_by_hand,
    "zero2": zero2_by_hand,
    "zero2:timer": zero2_with_its_timer,
}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
