"""Profile a script's steps as those of a suite, and leave the trace: ranks exchange nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distbench.metrics.base import PassContext, Values
from distbench.metrics.profile import Profile
from distbench.metrics.profile.trace_files import save_trace


class ScriptProfile(Profile):
    """The metric ``profile`` without marks of layers, which would be hooks in the script's modules."""

    @property
    def marks_layers(self) -> bool:
        """False."""
        return False

    def values(self, context: PassContext, state: Any) -> Values:
        """Leave the trace, which says nothing by itself."""
        if state.profiler is not None:
            state.profiler.stop()
            save_trace(state.profiler, trace_file(context.folder, context.rank))
        return {}


def trace_file(folder: Path, rank: int) -> Path:
    """File with the profiled steps of *rank*."""
    return folder / f"rank{rank}.trace.json.gz"
