"""Read the events of torch's profiler as it holds them in memory. Without torch: events are duck-typed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from distbench.traces.trace import DEVICE_KINDS, NODE_PREFIX, ProfilerEvent, Trace, read_trace

_LAUNCHES = ("cuda_runtime", "cuda_driver")


def read_kineto(events: Iterable[Any]) -> Trace:
    """Build the trace of torch's kineto *events* (``kineto_results.events()``)."""
    every = list(events)
    # as a float, nanoseconds since 1970 are exact only to a quarter of a microsecond
    origin = min((event.start_ns() for event in every), default=0)
    return read_trace(_profiler_events(every, origin), origin)


def _profiler_events(events: Iterable[Any], origin: int) -> Iterator[ProfilerEvent]:
    for event in events:
        kind, name = event.activity_type(), event.name()
        begin = (event.start_ns() - origin) / 1e9
        end = begin + event.duration_ns() / 1e9
        if kind in ("cpu_op", "user_annotation"):
            shapes = event.shapes()
            elements = math.prod(shapes[0]) if shapes else None
            sequence = event.sequence_nr() if name.startswith(NODE_PREFIX) else None
            yield ProfilerEvent(
                name, event.start_thread_id(), begin, end, elements, sequence=sequence, kind=kind
            )
        elif kind in _LAUNCHES:
            correlation = event.correlation_id()
            yield ProfilerEvent(name, event.start_thread_id(), begin, end, kind=kind, correlation=correlation)
        elif kind in DEVICE_KINDS:
            correlation = event.correlation_id()
            yield ProfilerEvent(
                name, event.device_resource_id(), begin, end, kind=kind, correlation=correlation
            )


def tells_activities(events: Iterable[Any]) -> bool:
    """True if kineto's *events* tell their kind, or there are none: so they do from torch 2.12 on."""
    return all(hasattr(event, "activity_type") for event in itertools.islice(events, 1))
