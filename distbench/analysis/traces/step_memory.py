"""Memory of a rank in each step, as its allocators counted it (``profile_memory=True``)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.analysis.traces.steps import TraceStep
from distbench.core.grouping import group_by
from distbench.traces.chrome_file import MemoryCount


@dataclass(frozen=True)
class StepMemory:
    """Memory of one device in one step of the host."""

    step: str
    device: int | None
    """Number of the device; None: the host."""
    peak: int
    """Largest number of bytes of tensors."""
    reserved: int | None
    """Largest number of bytes that the allocator held; None: it holds none beyond those of tensors."""
    growth: int
    """Bytes of tensors at its end less those at its begin."""


def step_memory(
    counts: Sequence[MemoryCount], steps: Sequence[TraceStep], *, on_device: bool
) -> Iterator[StepMemory]:
    """Yield the memory of each step: of devices if the rank computes *on_device*, else of the host.

    A step in which nothing was allocated or freed is left out.
    """
    used = sorted(each for each in counts if (each.device is not None) == on_device)
    for device, found in group_by(used, lambda count: count.device).items():
        moments = [count.moment for count in found]
        for step in steps:
            first, last = (bisect.bisect_left(moments, end) for end in step.host)
            if not (inside := found[first:last]):
                continue
            before = max(inside[0].allocated - inside[0].change, 0)
            yield StepMemory(
                step.name,
                device,
                max(before, *(count.allocated for count in inside)),
                max(count.reserved for count in inside) if on_device else None,
                inside[-1].allocated - before,
            )
