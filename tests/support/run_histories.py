"""Histories, made up: runs day after day, with numbers that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.record import Record
from distbench.record.run_folder import Run, RunInfo
from support.records import case, info, measured

DDP = case("ddp")
OLD, NEW = {"packages": {"torch": "2.12.1"}, "cpu": "x"}, {"packages": {"torch": "2.13.0"}, "cpu": "x"}


def run_info(day: int, *cases: Case, **changes: Any) -> RunInfo:
    """Return the run of that *day*, its id the day."""
    made = date(2026, 1, 1) + timedelta(days=day)
    return replace(info(*cases), run_id=f"day{day:03}", created=f"{made}T03:00:00Z", **changes)


def occasion(day: int, *records: Record, **changes: Any) -> HistoryRun:
    """Return the run of that *day* with *records*."""
    made = run_info(day, *{record.case_id: record.case for record in records}.values(), **changes)
    return HistoryRun.of(RunAnalysis(made, records))


def days(values: Sequence[float], of: Case = DDP, **environment: Any) -> list[HistoryRun]:
    """Return a run a day of one case with one trial, its throughput given."""
    made = [replace(measured(of, value), environment=environment) for value in values]
    return [occasion(day, record) for day, record in enumerate(made)]


def stored(folder: Path, day: int, *records: Record) -> Run:
    """Write the run of that *day* into *folder*."""
    cases = list({record.case_id: record.case for record in records}.values())
    run = Run.create_at(folder, run_info(day, *cases), "")
    for record in records:
        run.write_record(record)
    return run
