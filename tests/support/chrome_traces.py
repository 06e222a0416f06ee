"""Chrome traces of torch.profiler by hand, with answers that can be worked out on paper. Times in ms."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST_THREAD = 100
BACKWARD_THREAD = 101


@dataclass
class ChromeTrace:
    """Collects the events of one rank."""

    rank: int | None = 0
    world_size: int = 2
    device: str = "NVIDIA H100 80GB HBM3"
    events: list[dict[str, Any]] = field(default_factory=list)

    def event(
        self, kind: str, name: str, begin: float, end: float, tid: int = HOST_THREAD, **args: Any
    ) -> ChromeTrace:
        self.events.append(
            {
                "ph": "X",
                "cat": kind,
                "name": name,
                "pid": 0 if kind in ("kernel", "gpu_memcpy", "gpu_memset") else 4711,
                "tid": tid,
                # microseconds, of a clock that did not begin today
                "ts": 1_000_000.0 + begin * 1e3,
                "dur": (end - begin) * 1e3,
                "args": args,
            }
        )
        return self

    def step(self, number: int, begin: float, end: float) -> ChromeTrace:
        return self.event("user_annotation", f"ProfilerStep#{number}", begin, end)

    def op(self, name: str, begin: float, end: float, tid: int = HOST_THREAD, **args: Any) -> ChromeTrace:
        return self.event("cpu_op", name, begin, end, tid, **args)

    def call(self, name: str, begin: float, end: float, tid: int = HOST_THREAD) -> ChromeTrace:
        """A call of the CUDA runtime that launches nothing."""
        return self.event("cuda_runtime", name, begin, end, tid, correlation=10_000 + len(self.events))

    def kernel(
        self,
        name: str,
        launched: float,
        begin: float,
        end: float,
        stream: int = 7,
        tid: int = HOST_THREAD,
        kind: str = "kernel",
        **args: Any,
    ) -> ChromeTrace:
        number = len(self.events) + 1
        self.event("cuda_runtime", "cudaLaunchKernel", launched, launched + 0.01, tid, correlation=number)
        return self.event(kind, name, begin, end, stream, correlation=number, stream=stream, device=0, **args)

    def collective(
        self, launched: float, begin: float, end: float, op: str = "allreduce", **args: Any
    ) -> ChromeTrace:
        """An NCCL kernel that carries the arguments of its collective, as since torch 2.2."""
        about = {
            "Collective name": op,
            "dtype": "Float",
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
            "Group size": 2,
            "Process Group Ranks": "[0, 1]",
        }
        return self.kernel("ncclDevKernel_Generic(...)", launched, begin, end, stream=20, **about | args)

    def memory(
        self, moment: float, change: int, allocated: int, device: int | None = 0, reserved: int = 0
    ) -> ChromeTrace:
        """An instant at which the allocator of a device, or of the host, made or freed a tensor."""
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 4711,
                "tid": HOST_THREAD,
                "ts": 1_000_000.0 + moment * 1e3,
                "args": {
                    "Total Reserved": reserved,
                    "Total Allocated": allocated,
                    "Bytes": change,
                    "Device Id": -1 if device is None else device,
                    "Device Type": 0 if device is None else 1,
                },
            }
        )
        return self

    def as_json(self) -> dict[str, Any]:
        told = {} if self.rank is None else {"rank": self.rank, "world_size": self.world_size}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.device}],
            "distributedInfo": told,
            "traceEvents": self.events,
        }

    def write(self, path: Path) -> Path:
        text = json.dumps(self.as_json()).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def training_step() -> ChromeTrace:
    """Two steps of the host; the first lasts 100 ms on the device, from 10 to 110.

    40 ms of computation, 20 of exposed communication, 10 of an exposed copy, 30 idle: 10 after a
    synchronisation, 5 because the host is late, 15 between a launch and its begin.
    """
    return (
        ChromeTrace()
        .step(0, 0, 99)
        .op("aten::mm", 1, 2)
        .kernel("gemm", 1.5, 10, 40)
        .collective(15, 30, 60)
        .op("aten::copy_", 49, 51)
        .kernel("Memcpy HtoD (Pageable -> Device)", 50, 55, 70, stream=8, kind="gpu_memcpy")
        .call("cudaStreamSynchronize", 65, 72)
        .event("python_function", "train.py(12): main", 0, 99)
        .event("python_function", "torch/_tensor.py(34): item", 64, 73)
        .op("aten::add", 79, 81)
        .kernel("elementwise", 80, 85, 95)
        .step(1, 99.5, 130)
        .op("aten::zero_", 99.8, 101)
        .kernel("fill", 100, 110, 120)
    )
