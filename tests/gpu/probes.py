"""Probes of a device, one in a process: ``python probes.py NAME DEVICE`` prints a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch


def facts(device: str) -> dict[str, Any]:
    """Versions, and whether a child of a parent with torch can use the device."""
    touched = torch.cuda.is_initialized()
    if not (child := os.fork()):
        ones = torch.ones(64, 64, device=device)
        os._exit(0 if float((ones @ ones).sum()) == 64**3 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    return {**versions, "device": name, "cuda touched": touched, "forked child": code}


def memory(device: str) -> dict[str, Any]:
    """Peaks of distbench's counters against those of torch, for sizes that are known."""
    from distbench.metrics.memory.allocators import CudaAllocatorStats

    if device == "cpu":
        return {"absent": "a CPU has no caching allocator"}
    stats = CudaAllocatorStats([torch.device(device, 0)])
    before = torch.cuda.memory_allocated()
    stats.reset_peak()
    torch.empty(1 << 28, dtype=torch.uint8, device=device)
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    return {
        **stats.values(),
        "peak of torch": torch.cuda.max_memory_allocated(),
        "expected": before + (1 << 28),
        "pinned": pinned.nbytes,
    }


def nvml(device: str) -> dict[str, Any]:
    """The GPU of NVML against that of torch; its energy against its power."""
    if device == "cpu":
        return {"absent": "a CPU is unknown to NVML"}
    import pynvml

    from distbench.system.machine import gpu_index, machine_facts

    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    factor = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    powers, began, joules = [], time.monotonic(), pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    while (seconds := time.monotonic() - began) < 3:
        for _ in range(20):
            factor @ factor
        torch.cuda.synchronize()
        powers.append(pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000)
    joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - joules) / 1000
    free, total = torch.cuda.mem_get_info()
    told = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    return {
        "index": gpu_index(uuid),
        "energy over power": joules / seconds / (sum(powers) / len(powers)),
        "total": [told.total, total],
        "used": [told.used, total - free],
        "facts": machine_facts(),
    }


def clock(device: str) -> dict[str, Any]:
    """The step clock against the wall, and on a GPU against events of its own."""
    from distbench.worker.passes import StepClock

    size = 4096 if device == "cuda" else 128
    factor = torch.ones(size, size, device=device) / size
    marks, events, began = StepClock(torch.device(device)), [], time.perf_counter()
    for number in range(21):
        if device == "cuda":
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        marks.mark()
        if number < 20:
            factor = factor @ factor
    steps_s = sum(marks.seconds())
    wall_s = time.perf_counter() - began
    of_events = {"over events": 1000 * steps_s / events[0].elapsed_time(events[-1])} if events else {}
    return {"over the wall": steps_s / wall_s, **of_events}


if __name__ == "__main__":
    name, device = sys.argv[1:]
    probe = {each.__name__: each for each in (facts, memory, nvml, clock)}[name]
    sys.stdout.write(json.dumps({"check": name, "values": probe(device)}, default=str) + "\n")
