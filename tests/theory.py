"""What measured trials moved and kept, held against the theory of their strategies."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.communication import EXPLAINED, explanation, volume
from distbench.analysis.memory import TOLERANCE, held
from distbench.analysis.mesh_dimensions import miscounted, misplaced
from distbench.record import Record
from distbench.record.run_folder import Run


def against_theory(folder: Path) -> dict[str, str]:
    """What neither theory nor a known cause explains of each measured case in *folder*; empty: nothing."""
    measured = (record for record in Run(folder).records() if record.job.kind == "measure")
    return {record.case.name: _unexplained(record) for record in measured}


def _unexplained(record: Record) -> str:
    moved, kept = volume(record), held(record)
    if moved is None or moved.unexplained >= EXPLAINED:
        return explanation(record)
    if kept is None or (abs(kept.difference or 0) >= TOLERANCE and not kept.cause()):
        return f"keeps {kept}"
    return misplaced(record) or miscounted(record)
