"""Theory of strategies, and what measured trials moved and kept held against it."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume, volume_sentence
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.core.case import Case
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.strategies.base import Strategy


def bytes_by_operation(strategy: Strategy, case: Case, parameters: int) -> dict[str, float] | None:
    """Expected bytes of a rank's collectives in a step; None: *strategy* has no such theory."""
    traffic = strategy.traffic(case, parameters)
    if traffic is None:
        return None
    sizes = dict.fromkeys((each.op for each in traffic), 0.0)
    for each in traffic:
        sizes[each.op] += each.bytes
    return sizes


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
