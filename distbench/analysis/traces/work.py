"""Work of a rank in a trace: kernels, copies and collectives, each with the operator that asked for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from distbench.analysis.traces.call_stacks import CallStack, call_stacks
from distbench.traces.trace import MODULE_PREFIX, NODE_PREFIX, ProfilerEvent, Trace, outermost

WorkKind = Literal["compute", "communication", "copy"]
UNKNOWN_OPERATOR = "(launched before the trace, or not recorded)"
# operators that are only the way to another one
_FORWARDING = re.compile(r"aten::(_convolution|convolution|linear|matmul)$")


@dataclass(slots=True)
class Work:
    """One kernel, copy or collective of the device; on a rank without one, an operation of the host."""

    event: ProfilerEvent
    kind: WorkKind
    operator: str
    """Operation of the host that launched it, the innermost of torch."""
    module: str = ""
    """Class of the module whose forward pass launched it, or whose backward pass did; empty: not recorded."""
    call: ProfilerEvent | None = None
    """The call of ``operator``; None: not recorded."""
    is_recomputed: bool = False
    """True if activation checkpointing computes it a second time, in the backward pass."""


def find_work(trace: Trace) -> list[Work]:
    """All work of *trace* by its begin."""
    if not trace.is_on_device:
        return _host_work(trace)
    every = [
        *(Work(event, "compute", UNKNOWN_OPERATOR) for event in trace.kernels),
        *(Work(event, "communication", event.name) for event in trace.backend_events),
        *(Work(event, "copy", UNKNOWN_OPERATOR) for event in trace.copies),
    ]
    every.sort(key=lambda work: work.event.begin)
    moments = [_launch(work.event) for work in every]
    for place, stack in call_stacks(trace.host_operations, moments):
        work = every[place]
        work.call = _operator_call(stack)
        if work.kind != "communication":
            work.operator = _operator_name(work.call)
        work.is_recomputed = _is_recomputed(stack)
    _add_modules(trace, every, moments)
    return every


def _launch(event: ProfilerEvent) -> tuple[int, float]:
    # no thread of the host has this number, so nothing encloses it
    thread = -1 if event.launch_thread is None else event.launch_thread
    return thread, event.begin if event.launched is None else event.launched


def _host_work(trace: Trace) -> list[Work]:
    """Outermost operations of the host and collectives of the backend."""
    every = [
        *(Work(event, "compute", event.name, call=event) for event in outermost(trace.compute_events)),
        *(Work(event, "communication", event.name) for event in trace.backend_events),
    ]
    every.sort(key=lambda work: (work.event.begin, -work.event.end))
    moments = [(work.event.thread, work.event.begin) for work in every]
    for place, stack in call_stacks(trace.host_operations, moments):
        every[place].is_recomputed = every[place].kind == "compute" and _is_recomputed(stack)
    _add_modules(trace, every, moments)
    return every


def _operator_call(stack: CallStack) -> ProfilerEvent | None:
    """Innermost operation of *stack*; a node of autograd if there is no other."""
    inner = (call for call in reversed(stack) if not call.name.startswith(NODE_PREFIX))
    return next((call for call in inner if not _FORWARDING.match(call.name)), stack[-1] if stack else None)


def _operator_name(call: ProfilerEvent | None) -> str:
    return UNKNOWN_OPERATOR if call is None else call.name.removeprefix(f"{NODE_PREFIX}: ")


def _is_recomputed(stack: CallStack) -> bool:
    """True if *stack* is a forward pass inside the backward pass.

    Inside a node of the backward pass autograd is off, unless activation checkpointing computes again what
    the node needs; only with autograd on has an operation a sequence number.
    """
    node = next((i for i, call in enumerate(stack) if call.name.startswith(NODE_PREFIX)), None)
    if node is None:
        return False
    return any(call.sequence is not None and call.name.startswith("aten::") for call in stack[node + 1 :])


def _add_modules(trace: Trace, every: list[Work], moments: list[tuple[int, float]]) -> None:
    """Name the module of each work, as far as the profiler recorded modules."""
    modules = [call for call in trace.python_calls if call.name.startswith(MODULE_PREFIX)]
    if not modules:
        return
    made = [op for op in trace.host_operations if op.sequence is not None and "::" in op.name]
    module_of_node: dict[int, str] = {}
    for place, stack in call_stacks(modules, [(op.thread, op.begin) for op in made]):
        sequence = made[place].sequence
        if stack and sequence is not None:
            module_of_node.setdefault(sequence, _module(stack))
    for place, stack in call_stacks(modules, moments):
        if stack:
            every[place].module = _module(stack)
    for place, stack in call_stacks(trace.backward_nodes, moments):
        sequence = stack[-1].sequence if stack else None
        if sequence is not None and not every[place].module:
            every[place].module = module_of_node.get(sequence, "")


def _module(stack: CallStack) -> str:
    # the profiler numbers the modules of a class: Linear_3
    return stack[-1].name.removeprefix(MODULE_PREFIX)
