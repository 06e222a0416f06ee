"""Builds engines one after another in one process, and prints what each leaves on the device.

python engines.py FOLDER DEVICE
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.worker.batches import MicroBatchReader

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from loops import setting_of

STRATEGIES = {
    "single": PluginChoice("single"),
    "fsdp": PluginChoice("fsdp"),
    "fsdp+offload": PluginChoice("fsdp", {"cpu_offload": True}),
    "fsdp1": PluginChoice("fsdp", {"version": 1}),
    **{f"zero{stage}": PluginChoice("zero", {"stage": stage}) for stage in range(4)},
    "zero3+offload-all": PluginChoice(
        "zero", {"stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    ),
    # last: all of the others have left it as it was
    "ddp": PluginChoice("ddp"),
}


def main(folder: Path, device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    left = {}
    for label, strategy in STRATEGIES.items():
        if strategy.name == "zero" and find_spec("deepspeed") is None:
            continue
        built = trained(strategy, folder, device)
        gc.collect()
        left[label] = {"built": built, "closed": allocated(device)}
    sys.stdout.write(json.dumps(left) + "\n")
    sys.stdout.flush()
    os._exit(0)


def trained(strategy: PluginChoice, folder: Path, device: str) -> int:
    """Bytes allocated after two steps of an engine, which is closed then."""
    setting = setting_of(strategy, folder, device)
    engine = registry.create_plugin("strategies", strategy).build(setting)
    feed = MicroBatchReader(setting)
    for step in range(2):
        for batch in feed.micro_batches(step):
            engine.forward_backward(batch)
        engine.step()
    built = allocated(device)
    engine.close()
    return built


def allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
