"""Profiler events, sorted for the analysis of a step. Without torch: events are duck-typed.

torch.profiler shows a collective with gloo and NCCL as two events: an operation on the host that issues it
(``c10d::allreduce_``), and the interval in which the backend runs it (``gloo:all_reduce`` on a separate
thread; a kernel with ``nccl`` in its name on the device).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from distbench.metrics.profile.intervals import TimeInterval, TimeIntervals, difference, intersection, union

MARK_PREFIX = "distbench::"
"""Prefix of the ranges that the worker marks: ``step`` and the parts of a step."""
LAYER_PREFIX = f"{MARK_PREFIX}layer:"
"""Prefix of the ranges of modules; the index of their layer follows."""
_NODE = "autograd::engine::evaluate_function"

_COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
# they contain Python and hooks besides computation, which appears inside them as separate operations
_WRAPPERS = ("autograd", "torch", "distbench")
_ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_attention_math": "math",
}
"""Operation behind torch's scaled_dot_product_attention -> kernel that it chose."""
_NO_TRAFFIC = ("barrier", "monitored_barrier_", "wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True, slots=True)
class ProfilerEvent:
    """Event with begin and end, in seconds on the profiler's clock."""

    name: str
    thread: int
    begin: float
    end: float
    elements: int | None = None
    """Elements of its first input, if the profiler reports them."""
    launched: float | None = None
    """Time at which the host launched it; None for host events."""
    sequence: int | None = None
    """Number of a node of autograd; None for any other event."""

    @property
    def interval(self) -> TimeInterval:
        """Begin and end."""
        return self.begin, self.end


@dataclass
class Trace:
    """Events of the profiled steps of one rank."""

    origin_ns: int = 0
    """Zero of its times, in nanoseconds since 1970 on the clock of the rank's node."""
    marks: dict[str, list[TimeInterval]] = field(default_factory=dict)
    """Name of a mark (without prefix) -> its intervals."""
    host_calls: list[ProfilerEvent] = field(default_factory=list)
    """Host operations that issue a collective, by start."""
    backend_events: list[ProfilerEvent] = field(default_factory=list)
    """Events of the backend running collectives, by start; ``name`` is the backend's own: ``all_reduce``."""
    kernels: list[ProfilerEvent] = field(default_factory=list)
    """Computation on the device."""
    copies: list[ProfilerEvent] = field(default_factory=list)
    """Copies to, from and on the device."""
    attention: set[str] = field(default_factory=set)
    """Attention kernels that ran."""
    layers: list[tuple[int, TimeInterval]] = field(default_factory=list)
    """Index of a layer and the interval in which a module of it ran."""
    backward_nodes: list[ProfilerEvent] = field(default_factory=list)
    """Nodes of autograd that the backward pass ran."""
    _operations: list[ProfilerEvent] = field(default_factory=list)
    _waits: list[ProfilerEvent] = field(default_factory=list)

    @property
    def is_on_device(self) -> bool:
        """True if a device computed; otherwise the host did."""
        return bool(self.kernels)

    @functools.cached_property
    def compute_intervals(self) -> list[TimeInterval]:
        """Intervals in which the rank computed: kernels of the device, else operations of the host.

        Operations on the threads of the backend belong to communication, and an operation that
        waits for a collective does not compute. A message that gloo sends or receives has no thread of its
        own: it appears on the thread that issued it, which computes meanwhile.
        """
        if self.is_on_device:
            return union(kernel.interval for kernel in self.kernels)
        backend = {event.thread for event in self.backend_events} - {
            event.thread for event in self.host_calls
        }
        busy = union(op.interval for op in self._operations if op.thread not in backend)
        return difference(busy, union(wait.interval for wait in (*self._waits, *self.host_calls)))


def read_trace(events: Iterable[Any]) -> Trace:
    """Build the trace of torch's kineto *events* (``kineto_results.events()``)."""
    every = list(events)
    # as a float, nanoseconds since 1970 are exact only to a quarter of a microsecond
    origin = min((event.start_ns() for event in every), default=0)
    trace = Trace(origin)
    launches: dict[int, float] = {}
    on_device = []
    for event in every:
        kind = _activity(event)
        if kind == "cpu_op" and event.name().startswith(_NODE):
            trace.backward_nodes.append(replace(_host_event(event, origin), sequence=event.sequence_nr()))
        elif kind == "cpu_op" and event.name().startswith(LAYER_PREFIX):
            layer = int(event.name().removeprefix(LAYER_PREFIX))
            trace.layers.append((layer, _host_event(event, origin).interval))
        elif kind == "cpu_op":
            _sort_operation(trace, _host_event(event, origin))
        elif kind == "user_annotation":
            _sort_annotation(trace, _host_event(event, origin))
        elif kind in ("cuda_runtime", "cuda_driver"):
            launches[event.correlation_id()] = (event.start_ns() - origin) / 1e9
        elif kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            on_device.append((kind, event))
    for kind, event in on_device:
        _sort_device(trace, kind, event, origin, launches.get(event.correlation_id()))
    trace.host_calls = _outermost(trace.host_calls)
    trace.backend_events.sort(key=lambda event: event.begin)
    trace.marks = {name: sorted(intervals) for name, intervals in trace.marks.items()}
    return trace


def _activity(event: Any) -> str:
    """Kind of *event*, as kineto names it."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    # before torch 2.12 an event tells no more, which is all where only the host computes
    return "user_annotation" if event.is_user_annotation() else "cpu_op"


def _outermost(events: list[ProfilerEvent]) -> list[ProfilerEvent]:
    """Events of *events* inside no other one, by start: a functional collective calls a plain one."""
    outermost: list[ProfilerEvent] = []
    # by thread, whose events are nested or follow one another
    ends: dict[int, float] = {}
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        if event.end > ends.get(event.thread, -math.inf):
            outermost.append(event)
            ends[event.thread] = event.end
    return outermost


def _host_event(event: Any, origin: int) -> ProfilerEvent:
    begin = (event.start_ns() - origin) / 1e9
    shapes = event.shapes()
    elements = math.prod(shapes[0]) if shapes else None
    return ProfilerEvent(
        event.name(), event.start_thread_id(), begin, begin + event.duration_ns() / 1e9, elements
    )


def _sort_operation(trace: Trace, event: ProfilerEvent) -> None:
    namespace, separator, name = event.name.partition("::")
    if namespace in _COLLECTIVE_NAMESPACES:
        (trace._waits if name in _NO_TRAFFIC else trace.host_calls).append(event)
    elif separator and namespace not in _WRAPPERS:
        trace._operations.append(event)
        trace.attention |= {_ATTENTION[name]} if name in _ATTENTION else set()


def _sort_annotation(trace: Trace, event: ProfilerEvent) -> None:
    if event.name.startswith(MARK_PREFIX):
        trace.marks.setdefault(event.name.removeprefix(MARK_PREFIX), []).append(event.interval)
    elif event.name.startswith("gloo:"):
        trace.backend_events.append(replace(event, name=event.name.removeprefix("gloo:")))


def _sort_device(trace: Trace, kind: str, event: Any, origin: int, launched: float | None) -> None:
    begin = (event.start_ns() - origin) / 1e9
    work = ProfilerEvent(
        event.name(),
        event.device_resource_id(),
        begin,
        begin + event.duration_ns() / 1e9,
        launched=begin if launched is None else launched,
    )
    if kind != "kernel":
        trace.copies.append(work)
    elif "nccl" in work.name.lower():
        trace.backend_events.append(replace(work, name=_nccl_operation(work.name)))
    else:
        trace.kernels.append(work)


def _nccl_operation(kernel: str) -> str:
    """Operation of an NCCL kernel such as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    names = {
        "AllReduce": "all_reduce",
        "AllGather": "all_gather",
        "ReduceScatter": "reduce_scatter",
        "Broadcast": "broadcast",
        "Reduce": "reduce",
        "SendRecv": "send_recv",
    }
    return next((name for part, name in names.items() if part in kernel), kernel)


def starting_in(events: Iterable[ProfilerEvent], step: TimeInterval) -> list[ProfilerEvent]:
    """Events that start inside *step*."""
    return [event for event in events if step[0] <= event.begin < step[1]]


def clip_to_step(intervals: Iterable[TimeInterval], step: TimeInterval) -> list[TimeInterval]:
    """Part of disjoint *intervals* that lies inside *step*."""
    return intersection(list(intervals), [step])


def launched_in(work: Iterable[ProfilerEvent], part: TimeIntervals) -> list[TimeInterval]:
    """Intervals of the device *work* that the host launched in a *part* of the step."""
    return union(
        event.interval
        for event in work
        if event.launched is not None and any(begin <= event.launched < end for begin, end in part)
    )
