"""Cases whose step needs more memory than there is, found before anything is launched."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from distbench.core.case import Case
from distbench.core.grouping import group_by
from distbench.core.machine import Machine
from distbench.core.units import format_bytes
from distbench.ipc.memory_traces import TracedMemory
from distbench.plan import Plan, launcher_machine, with_refusals
from distbench.plan.environments import detect_environments
from distbench.plan.memory_capacity import memory_capacity
from distbench.run.memory_traces import Stopped, trace_memory
from distbench.run.observer import Observer
from distbench.suite import Suite

_ADVICE = (
    "use a smaller batch.micro_batch_size, activation_checkpointing: full, or a strategy that shards or "
    "offloads more"
)


def trace_cases(
    cases: Sequence[Case], device: str, observer: Observer, stopped: Stopped = lambda: False
) -> dict[str, TracedMemory]:
    """Trace the peak memory of *cases* on a kind of *device*, by their IDs; of fewer once *stopped*."""
    traces, found = trace_memory(cases, device, stopped), {}
    for number, case in enumerate(cases):
        item, began = f"memory trace of {case.name}", time.monotonic()
        observer.build_started(item, number, len(cases))
        if (traced := next(traces, None)) is None:
            break
        found[case.id] = traced
        observer.build_ended(item, number, len(cases), time.monotonic() - began, failed=False)
    return found


def missing_peak_texts(cases: Sequence[Case], traced: Mapping[str, TracedMemory]) -> Iterator[str]:
    """Reasons why some of *cases* have no peak although they were *traced*, each once with their labels."""
    missing = [case for case in cases if case.id in traced and traced[case.id].peak is None]
    for reason, alike in group_by(missing, lambda case: traced[case.id].reason).items():
        yield f"no peak of {', '.join(dict.fromkeys(case.label for case in alike))}: {reason}"


def misfit_text(case: Case, machine: Machine, traced: Mapping[str, TracedMemory], share: float = 1.0) -> str:
    """Reason why the traced peak of *case* exceeds a *share* of the memory; empty: it fits, or is unknown."""
    peak, room = traced.get(case.id, TracedMemory()).peak, memory_capacity(case, machine)
    if peak is None or room is None or room.fits(peak, share):
        return ""
    allowed = "" if share == 1 else f", {format_bytes(share * room.bytes)} by limits.predicted_memory"
    need = f"the tensors of a step need {room.need_text(peak)} by a trace"
    return f"does not fit: {need}, and {room.text}{allowed}; {_ADVICE}"


def without_misfits(
    suite: Suite, planned: Plan, pending: Collection[str], observer: Observer, stopped: Stopped
) -> Plan:
    """*planned*, in which cases that exceed ``limits.predicted_memory`` can't run.

    Without that limit nothing is traced, and with it those with the IDs *pending*.
    """
    share = suite.limits.predicted_memory
    if share is None:
        return planned
    machine = detect_environments(suite, launcher_machine(suite))
    cases = [item.case for item in planned.cases if item.case.id in pending]
    traced = trace_cases(cases, machine.device, observer, stopped)
    for text in missing_peak_texts(cases, traced):
        observer.note(f"limits.predicted_memory: {text}")
    return with_refusals(
        suite, planned, machine, lambda case: misfit_text(case, machine, traced, share) or None
    )
