"""Theory of strategies, and what trials trained, moved and kept, held against it and their reference."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.communication import (
    UNEXPLAINED_TOLERANCE,
    compare_volume,
    multi_rank_rows,
    step_count,
    volume_sentence,
)
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.core.case import Case
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.strategies.base import Strategy
from support.runs import Finished


def bytes_by_operation(strategy: Strategy, case: Case, parameters: int) -> dict[str, float] | None:
    """Expected bytes of a rank's collectives in a step; None: *strategy* has no such theory."""
    traffic = strategy.traffic(case, parameters)
    if traffic is None:
        return None
    sizes = dict.fromkeys((each.op for each in traffic), 0.0)
    for each in traffic:
        sizes[each.op] += each.bytes
    return sizes


def assert_same_training(done: Finished) -> None:
    """Each case trains as its reference does, but for rounding."""
    assert done.code == 0, done.errors
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}, done.verdicts


def measured_trials(folder: Path) -> list[Record]:
    return [record for record in Run(folder).records() if record.job.kind == "measure"]


def against_theory(folder: Path) -> dict[str, str]:
    """What neither theory nor a known cause explains of each measured case in *folder*; empty: nothing."""
    return {record.case.name: _unexplained(record) for record in measured_trials(folder)}


def assert_by_theory(record: Record) -> None:
    """A trial moved and kept what theory says; a known cause is no excuse."""
    moved, kept = compare_volume(record), largest_rank_memory(record)
    assert moved is not None and moved.unexplained_share < UNEXPLAINED_TOLERANCE, record.case.name
    assert kept is not None and abs(kept.difference or 0) < MODEL_STATE_TOLERANCE, record.case.name


def _unexplained(record: Record) -> str:
    moved, kept = compare_volume(record), largest_rank_memory(record)
    if moved is None or moved.unexplained_share >= UNEXPLAINED_TOLERANCE:
        return volume_sentence(record)
    if kept is None or (abs(kept.difference or 0) >= MODEL_STATE_TOLERANCE and not kept.known_cause()):
        return f"keeps {kept}"
    return misplaced_traffic(record) or call_count_mismatches(record) or meeting_mismatch(record)


def meeting_mismatch(record: Record) -> str:
    """Meetings of the ranks in a step, if theory gives another number; empty if it gives this one or none."""
    expected = expected_meetings(record)
    found = sum(row["meetings"] for row in multi_rank_rows(record)) / (step_count(record) or 1)
    if expected is None or abs(found - expected) < 1e-6:
        return ""
    return f"ranks meet {found:g} times per step, theory: {expected:g}"


def expected_meetings(record: Record) -> float | None:
    """Meetings of a rank in a step by theory; None: theory does not say."""
    told = [row.get("meetings") for row in record.tables.get("collectives_theory", [])]
    return None if None in told else float(sum(told))
