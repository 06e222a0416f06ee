"""Profiler events of one rank, sorted for analysis. Without torch.

torch.profiler shows a collective with gloo and NCCL as two events: an operation on the host that issues it
(``c10d::allreduce_``), and the interval in which the backend runs it (``gloo:all_reduce`` on a separate
thread; a kernel with ``nccl`` in its name on the device).
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from distbench.traces.intervals import TimeInterval, TimeIntervals, difference, intersection, union

MARK_PREFIX = "distbench::"
"""Prefix of the ranges that the worker marks: ``step`` and the parts of a step."""
LAYER_PREFIX = f"{MARK_PREFIX}layer:"
"""Prefix of the ranges of modules; the index of their layer follows."""
NODE_PREFIX = "autograd::engine::evaluate_function"
"""Prefix of the operations in which the backward pass runs a node of autograd."""
MODULE_PREFIX = "nn.Module: "
"""Prefix of the calls of modules among the Python functions of a trace with stacks or modules."""
STEP_PREFIX = "ProfilerStep#"
"""Prefix of the ranges of ``torch.profiler.profile.step``."""

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
DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Kinds of events that run on the device."""
_LIBRARY = re.compile("nccl|rccl|msccl", re.IGNORECASE)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NO_TRAFFIC = ("barrier", "monitored_barrier_", "wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True, slots=True)
class ProfilerEvent:
    """Event with begin and end, in seconds on the profiler's clock."""

    name: str
    thread: int
    """Thread of the host, or stream of the device."""
    begin: float
    end: float
    elements: int | None = None
    """Elements of its first input, if the profiler reports them."""
    launched: float | None = None
    """Time at which the host launched it; None for host events."""
    sequence: int | None = None
    """Number of the node of autograd that it runs or makes; None: none, or not reported."""
    kind: str = "cpu_op"
    """Activity as kineto names it: ``cpu_op``, ``user_annotation``, ``cuda_runtime``, ``kernel``, ..."""
    correlation: int | None = None
    """Number that the launch on the host and its work on the device share."""
    launch_thread: int | None = None
    """Thread of the host that launched it; None: not known."""
    arguments: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, compare=False)
    """Further details under the profiler's own names, such as ``Input Dims``."""

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
    """Computation on the device; a fill of memory is one, as for TraceLens."""
    copies: list[ProfilerEvent] = field(default_factory=list)
    """Copies to, from and on the device."""
    attention: set[str] = field(default_factory=set)
    """Attention kernels that ran."""
    layers: list[tuple[int, TimeInterval]] = field(default_factory=list)
    """Index of a layer and the interval in which a module of it ran."""
    backward_nodes: list[ProfilerEvent] = field(default_factory=list)
    """Nodes of autograd that the backward pass ran."""
    steps: list[ProfilerEvent] = field(default_factory=list)
    """Ranges of ``torch.profiler.profile.step``, on the host."""
    annotations: list[ProfilerEvent] = field(default_factory=list)
    """Other ranges of the host that libraries or the user name, such as ``Optimizer.step#AdamW.step``."""
    host_operations: list[ProfilerEvent] = field(default_factory=list)
    """All operations of the host, nodes of autograd included."""
    runtime_calls: list[ProfilerEvent] = field(default_factory=list)
    """Calls of the CUDA or HIP runtime and driver, on the host."""
    python_calls: list[ProfilerEvent] = field(default_factory=list)
    """Modules and Python functions of the user, if the profiler recorded stacks; libraries are left out."""
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
        return difference(union(event.interval for event in self.compute_events), self.blocked_intervals)

    @property
    def compute_events(self) -> list[ProfilerEvent]:
        """Kernels of the device; of a rank without one, operations of the host, which may be nested."""
        if self.is_on_device:
            return self.kernels
        backend = {event.thread for event in self.backend_events} - {
            event.thread for event in self.host_calls
        }
        return [op for op in self._operations if op.thread not in backend]

    @property
    def blocked_intervals(self) -> list[TimeInterval]:
        """Intervals in which a host that computes issues collectives or waits for them; none on a device."""
        if self.is_on_device:
            return []
        return union(wait.interval for wait in (*self._waits, *self.host_calls))

    def interval_in_step(self, event: ProfilerEvent) -> TimeInterval:
        """Begin and end of the backend's *event*; on a host, one that begins in a marked step ends in it.

        A step ends after its collectives. A thread of gloo that waits for a core records their end later.
        """
        steps = [] if self.is_on_device else self.marks.get("step", [])
        place = bisect.bisect_right(steps, event.begin, key=lambda step: step[0]) - 1
        end = steps[place][1] if place >= 0 else -math.inf
        return (event.begin, end) if event.begin < end < event.end else event.interval


def read_trace(events: Iterable[ProfilerEvent], origin_ns: int = 0) -> Trace:
    """Sort *events*, whose times are relative to *origin_ns*, into a trace."""
    trace = Trace(origin_ns)
    launches: dict[int, ProfilerEvent] = {}
    on_device = []
    for event in events:
        kind = event.kind
        if kind == "cpu_op":
            _sort_operation(trace, event)
        elif kind == "user_annotation":
            _sort_annotation(trace, event)
        elif kind in ("cuda_runtime", "cuda_driver"):
            trace.runtime_calls.append(event)
            if event.correlation is not None:
                launches[event.correlation] = event
        elif kind in DEVICE_KINDS:
            on_device.append(event)
        elif kind == "python_function":
            trace.python_calls.append(event)
    for event in sorted(on_device, key=lambda event: event.begin):
        _sort_device(trace, event, None if event.correlation is None else launches.get(event.correlation))
    trace.host_calls = outermost(trace.host_calls)
    trace.backend_events.sort(key=lambda event: event.begin)
    trace.marks = {name: sorted(intervals) for name, intervals in trace.marks.items()}
    return trace


def outermost(events: list[ProfilerEvent]) -> list[ProfilerEvent]:
    """Events of *events* inside no other one, by start: a functional collective calls a plain one."""
    outermost: list[ProfilerEvent] = []
    # by thread, whose events are nested or follow one another
    ends: dict[int, float] = {}
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        if event.end > ends.get(event.thread, -math.inf):
            outermost.append(event)
            ends[event.thread] = event.end
    return outermost


def _sort_operation(trace: Trace, event: ProfilerEvent) -> None:
    if event.name.startswith(LAYER_PREFIX):
        trace.layers.append((int(event.name.removeprefix(LAYER_PREFIX)), event.interval))
        return
    if event.name.startswith(STEP_PREFIX):
        # before torch 1.13
        trace.steps.append(event)
        return
    trace.host_operations.append(event)
    if event.name.startswith(NODE_PREFIX):
        trace.backward_nodes.append(event)
        return
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
    elif event.name.startswith(STEP_PREFIX):
        trace.steps.append(event)
    else:
        trace.annotations.append(event)


def _sort_device(trace: Trace, event: ProfilerEvent, launch: ProfilerEvent | None) -> None:
    launched = event.begin if launch is None else launch.begin
    work = replace(event, launched=launched, launch_thread=None if launch is None else launch.thread)
    if event.kind == "gpu_memcpy":
        trace.copies.append(work)
    elif _LIBRARY.search(event.name):
        trace.backend_events.append(replace(work, name=_nccl_operation(event.name)))
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


def named_like(pattern: re.Pattern[str], events: Sequence[ProfilerEvent]) -> list[ProfilerEvent]:
    """Those of *events* in whose names *pattern* is: a trace has millions of events of a few names."""
    names = {name for name in {event.name for event in events} if pattern.search(name)}
    return [event for event in events if event.name in names]


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
