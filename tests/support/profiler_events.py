"""A profiler's events by hand, as kineto gives them, for tests that need no process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kineto:
    """One event with the methods of ``torch._C._autograd._KinetoEvent`` that are used; times in ms."""

    label: str
    begin: float
    end: float
    kind: str = "cpu_op"
    thread: int = 1
    correlation: int = 0
    dims: tuple[tuple[int, ...], ...] = ()
    sequence: int = -1

    def name(self) -> str:
        return self.label

    def activity_type(self) -> str:
        return self.kind

    def start_ns(self) -> int:
        return round(1_790_000_000_000_000_000 + self.begin * 1e6)

    def duration_ns(self) -> int:
        return round((self.end - self.begin) * 1e6)

    def start_thread_id(self) -> int:
        return self.thread

    def device_resource_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.correlation

    def sequence_nr(self) -> int:
        return self.sequence

    def shapes(self) -> list[Any]:
        return [list(each) for each in self.dims]


@dataclass
class Events:
    """Collects events."""

    found: list[Kineto] = field(default_factory=list)

    def mark(self, name: str, begin: float, end: float) -> Events:
        self.found.append(Kineto(f"distbench::{name}", begin, end, "user_annotation"))
        return self

    def layer(self, index: int, begin: float, end: float) -> Events:
        """A module of the layer *index* that runs."""
        return self.op(f"distbench::layer:{index}", begin, end)

    def op(self, name: str, begin: float, end: float, thread: int = 1) -> Events:
        self.found.append(Kineto(name, begin, end, thread=thread))
        return self

    def node(self, sequence: int, begin: float, end: float, thread: int = 1) -> Events:
        """A node of autograd that the backward pass runs."""
        label = "autograd::engine::evaluate_function: AddmmBackward0"
        self.found.append(Kineto(label, begin, end, thread=thread, sequence=sequence))
        return self

    def gloo(self, name: str, begin: float, end: float, elements: int, thread: int = 7) -> Events:
        label = f"gloo:{name}"
        self.found.append(Kineto(label, begin, end, "user_annotation", thread, dims=((elements,),)))
        return self

    def kernel(self, name: str, launched: float, begin: float, end: float, stream: int = 7) -> Events:
        number = len(self.found) + 1
        self.found.append(Kineto("cudaLaunchKernel", launched, launched, "cuda_runtime", 1, number))
        self.found.append(Kineto(name, begin, end, "kernel", stream, number))
        return self

    def copy(self, name: str, launched: float, begin: float, end: float, stream: int = 7) -> Events:
        number = len(self.found) + 1
        self.found.append(Kineto("cudaMemcpyAsync", launched, launched, "cuda_runtime", 1, number))
        self.found.append(Kineto(name, begin, end, "gpu_memcpy", stream, number))
        return self


def cpu_step() -> Events:
    """One step of 100 ms: 40 ms of communication, of which 25 hide behind computation."""
    return (
        Events()
        .mark("step", 0, 100)
        .mark("data", 0, 5)
        .mark("forward", 5, 35)
        .op("aten::mm", 6, 34)
        .mark("backward", 35, 85)
        .op("autograd::engine::evaluate_function: AddmmBackward0", 35, 85)
        .op("aten::mm", 36, 70)
        .op("c10d::allreduce_", 44, 45)
        .gloo("all_reduce", 45, 85, elements=10)
        # what gloo's own thread computes is communication
        .op("aten::copy_", 46, 84, thread=7)
        .mark("optimizer", 85, 97)
        .op("aten::_fused_adamw_", 86, 96)
    )
