"""Describe the traces that a run keeps in words: there is nothing to choose among."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_count, format_duration, format_percent, join_words
from distbench.record import Record, RecordRow

_PARTS = {
    "compute_s": "computation",
    "exposed_comm_s": "exposed communication",
    "exposed_copy_s": "exposed copies",
    "idle_s": "idle",
}
_MOST_LOSSES = 3
_LEAST_SHARE = 0.01


def trace_training(run: RunAnalysis) -> tuple[str, tuple[str, ...]] | None:
    """The steps in the traces of *run* in one sentence, with losses and notes; None: it has no traces."""
    if not run.info.is_trace or not run.records:
        return None
    record = run.records[-1]
    return _headline(record), (*_losses(record), *_notes(record))


def _headline(record: Record) -> str:
    steps = record.tables.get("trace_steps", [])
    whole = _mean(steps, "seconds")
    if not whole:
        return "The traces have no step."
    shares = {text: _mean(steps, part) / whole for part, text in _PARTS.items()}
    parts = join_words([f"{format_percent(share)} {text}" for text, share in shares.items()])
    ranks = len({row.get("rank") for row in steps})
    gpu = record.environment.get("gpu")
    whole_job = format_count(record.case.world_size, "rank")
    of = whole_job if ranks == record.case.world_size else f"{ranks} of {whole_job}"
    on = f" on {gpu}" if gpu else ""
    return (
        f"A step takes {format_duration(whole)} under the profiler: {parts}; mean over the steps of {of}{on}."
    )


def _losses(record: Record) -> Iterator[str]:
    rows = [row for row in record.tables.get("losses", []) if (row.get("share") or 0.0) >= _LEAST_SHARE]
    for row in rows[:_MOST_LOSSES]:
        before = f", most before {row['following']}" if row.get("following") else ""
        lost = f"{format_duration(row['seconds'])} ({format_percent(row['share'])}) of a step"
        yield f"{lost}: {row.get('kind')}: {row.get('name')}{before}. {row.get('advice')}"


def _notes(record: Record) -> Iterator[str]:
    for row in record.tables.get("trace_notes", []):
        yield f"Note: {row.get('note')}."


def _mean(rows: Sequence[RecordRow], column: str) -> float:
    values = [float(row.get(column) or 0.0) for row in rows]
    return math.fsum(values) / len(values) if values else 0.0
