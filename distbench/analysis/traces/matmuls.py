"""Matrix products of a trace by shape: FLOP/s, and FLOPs per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.analysis.traces.dtypes import dtype_of, item_bytes
from distbench.analysis.traces.work import Work
from distbench.core.grouping import group_by, group_pairs
from distbench.traces.trace import ProfilerEvent, Trace

# operation -> place of the two factors among its inputs
_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


@dataclass(frozen=True)
class MatmulShape:
    """A product of *batch* pairs of matrices, m x k by k x n."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class MatmulTimes:
    """All products of one shape on a rank."""

    shape: MatmulShape
    call_seconds: tuple[float, ...]
    """Time of the kernels of each call."""
    bytes: float
    """Bytes of the factors, of what is added and of the results, each once; mean over the calls."""

    @property
    def calls(self) -> int:
        """Number of calls."""
        return len(self.call_seconds)

    @property
    def seconds(self) -> float:
        """Time of the kernels of all calls."""
        return math.fsum(self.call_seconds)

    @property
    def flops_per_second(self) -> float:
        """FLOP/s: all FLOPs over all time."""
        return self.shape.flops * self.calls / self.seconds

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity."""
        return self.shape.flops / self.bytes


def matmul_times(trace: Trace, every: Sequence[Work]) -> list[MatmulTimes]:
    """Matrix products in *trace* whose shapes it has, by their time; *every* has all work of the rank."""
    found = [
        (sized[0], (sized[1], seconds))
        for call, seconds in _products(trace, every)
        if (sized := _shape(call))
    ]
    times = [
        MatmulTimes(
            shape,
            tuple(seconds for _, seconds in calls),
            math.fsum(size for size, _ in calls) / len(calls),
        )
        for shape, calls in group_pairs(found).items()
    ]
    return sorted((each for each in times if each.seconds > 0), key=lambda each: -each.seconds)


def _products(trace: Trace, every: Sequence[Work]) -> Iterator[tuple[ProfilerEvent, float]]:
    """Yield the calls of matrix products, and the time of what they launched, or of themselves on a host."""
    if not trace.is_on_device:
        yield from ((op, op.end - op.begin) for op in trace.host_operations if op.name in _FACTORS)
        return
    launched = [work for work in every if work.call is not None and work.call.name in _FACTORS]
    for works in group_by(launched, lambda work: id(work.call)).values():
        if (call := works[0].call) is not None:
            yield call, math.fsum(work.event.end - work.event.begin for work in works)


def _shape(call: ProfilerEvent) -> tuple[MatmulShape, int] | None:
    """Shape of the product of *call*, and its bytes; None if shapes were not recorded."""
    shapes, types = call.arguments.get("Input Dims"), call.arguments.get("Input type")
    at = _FACTORS[call.name]
    if (
        not isinstance(shapes, list)
        or not isinstance(types, list)
        or len(shapes) < at + 2
        or len(types) <= at
    ):
        return None
    first, second, dtype = shapes[at], shapes[at + 1], dtype_of(types[at])
    if dtype is None or len(first) != len(second) or len(first) not in (2, 3):
        return None
    batch = first[0] if len(first) == 3 else 1
    shape = MatmulShape(batch, first[-2], second[-1], first[-1], dtype)
    elements = math.prod(first) + math.prod(second) + batch * shape.m * shape.n
    added = math.prod(shapes[0]) if at else 0
    return shape, (elements + added) * item_bytes(dtype)
