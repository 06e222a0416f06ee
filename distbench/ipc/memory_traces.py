"""Result of tracing the memory of a step, as the process that traces it prints it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TracedMemory:
    """Peak memory of rank 0 in a step of a case."""

    peak: int | None = None
    """Maximum bytes of tensors alive at once in a step, as ``memory_peak`` of a record; None: ``reason``."""
    phase: str = ""
    """Phase of the step with the peak: ``data``, ``forward``, ``backward``, ``step``."""
    between_steps: int | None = None
    """Bytes of tensors that are left at the end of a step."""
    reason: str = ""
    """Reason why there is no peak; empty: there is one."""
