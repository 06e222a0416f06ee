"""What measured trials moved and kept, held against the theory of their strategies."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume, volume_sentence
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.record import Record
from distbench.record.run_folder import Run


def against_theory(folder: Path) -> dict[str, str]:
    """What neither theory nor a known cause explains of each measured case in *folder*; empty: nothing."""
    measured = (record for record in Run(folder).records() if record.job.kind == "measure")
    return {record.case.name: _unexplained(record) for record in measured}


def _unexplained(record: Record) -> str:
    moved, kept = compare_volume(record), largest_rank_memory(record)
    if moved is None or moved.unexplained_share >= UNEXPLAINED_TOLERANCE:
        return volume_sentence(record)
    if kept is None or (abs(kept.difference or 0) >= MODEL_STATE_TOLERANCE and not kept.known_cause()):
        return f"keeps {kept}"
    return misplaced_traffic(record) or call_count_mismatches(record)
