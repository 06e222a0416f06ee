"""Peak memory of the cases of a plan, traced before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping

from distbench.api.progress import observe_progress
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.core.units import MISSING_TEXT, format_bytes
from distbench.ipc.memory_traces import TracedMemory
from distbench.plan import Plan, PlannedCase
from distbench.run.memory_fit import misfit_text, trace_cases
from distbench.system.machine import is_installed

PEAK_TEXT = (
    "PEAK: most bytes of tensors alive at once on rank 0 in a step, traced on tensors without memory, with "
    "the operations of a CPU. What CUDA, NCCL and other libraries allocate, and fragmentation, come on top."
)
Peaks = Mapping[str, TracedMemory]
"""ID of a case -> its peak."""


def trace_peaks(planned: Plan, machine: Machine, *, quiet: bool) -> dict[str, TracedMemory]:
    """Trace the peak memory of the cases of *planned* that can run, by their IDs.

    Raises:
        UsageError: there is no torch in this environment.
    """
    if not is_installed("torch"):
        raise UsageError(
            "--trace (or limits.predicted_memory) runs a step of each case in torch, which is not installed "
            "here; leave it out, or install torch"
        )
    cases = [item.case for item in planned.cases if item.problem is None]
    with observe_progress(quiet=quiet) as watcher:
        return trace_cases(cases, machine.device, watcher)


def peak_text(item: PlannedCase, peaks: Peaks) -> str:
    """Peak of the case of *item* for people."""
    found = peaks.get(item.case.id)
    return MISSING_TEXT if found is None or found.peak is None else format_bytes(found.peak)


def peak_json(item: PlannedCase, machine: Machine, peaks: Peaks, share: float) -> dict[str, object]:
    """Peak of the case of *item* as ``--json`` prints it.

    *share*: part of the memory that it may take.
    """
    found = peaks.get(item.case.id, TracedMemory(reason="unsupported"))
    return {
        "peak_bytes": found.peak,
        "peak_phase": found.phase or None,
        "peak_note": found.reason,
        # a peak below the memory of a device is no proof that all fits
        "fits": False if misfit_text(item.case, machine, peaks, share) else None,
    }
