"""Profiler traces of any training, explained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from distbench.analysis.traces.job_trace import JobTrace, read_job, trace_files
from distbench.api.frames import table_frame
from distbench.api.run import RunResults
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.units import format_count, format_duration
from distbench.record.run_folder import Run
from distbench.report.fragment import fragment
from distbench.report.trace_fields import largest_rows
from distbench.report.trace_tables import TABLES, changes_table
from distbench.run.traces.stored_trace import ReadTrace, kept_files, store_trace
from distbench.tables.table import Table

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

CHANGES = "changes"


@dataclass(frozen=True, repr=False)
class TraceReport:
    """Traces of some or all ranks of a job, and another one to explain the difference to."""

    job: JobTrace
    """Steps, work and collectives of each rank."""
    against: JobTrace | None = None

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(self.makers)

    @property
    def makers(self) -> dict[str, Callable[[], Table]]:
        """Name -> function that makes the table; the changes come first, as people look for them first."""
        changes = {CHANGES: partial(changes_table, self.against, self.job)} if self.against else {}
        return {**changes, **{name: partial(make, self.job) for name, make in TABLES.items()}}

    @property
    def notes(self) -> list[str]:
        """Sentences on choices, damage and missing parts."""
        others = self.against.notes if self.against else ()
        return [*self.job.notes, *(f"in the other trace: {note}" for note in others)]

    def table(self, name: str, as_: str | None = None) -> Any:
        """A table, such as ``losses``, ``steps`` or ``collectives``; times are in seconds, sizes in bytes.

        Args:
            name: One of ``tables``.
            as_: As for ``Run.table``.

        Raises:
            UsageError: no such table or form, or the library of the form is not installed.
        """
        if name not in self.makers:
            raise UsageError(f"table = {name!r}: {did_you_mean(name, self.makers)}")
        return table_frame(self.makers[name](), as_)

    def store(self, out: str | os.PathLike[str] = "reports") -> RunResults:
        """Keep it as an ordinary run with the case ``trace``, and return that: its tables answer SQL.

        Args:
            out: Folder that holds the runs.

        Raises:
            UsageError: the traces are not of one training, or the folder can't be created.
            InfrastructureError: the disk is full or the folder is not writable.
        """
        return RunResults(store(self, Path(out), ["distbench", "trace", *map(str, self.files)]))

    @property
    def files(self) -> list[Path]:
        """Files that it was read from, by rank."""
        return [rank.path for rank in self.job.ranks]

    def __repr__(self) -> str:
        ranks = format_count(len(self.job.ranks), "rank")
        return f"<distbench trace of {ranks}: {format_duration(self.job.step_s)} a step>"

    def _repr_html_(self) -> str:
        shown = largest_rows(self.makers[CHANGES if self.against else "losses"]())
        return fragment(replace(shown, notes=(*shown.notes, *self.notes)))


def store(report: TraceReport, out: Path, words: Sequence[str]) -> Run:
    """Keep *report* as a run below *out*, started by the command line *words*, as ``store_trace`` does."""
    tables = {name: make() for name, make in report.makers.items()}
    return store_trace(ReadTrace(report.job, tables, report.notes), out, words)


def trace(files: Paths, *, against: Paths | None = None, rank: int | None = None) -> TraceReport:
    """Read and explain Chrome traces of torch.profiler.

    Args:
        files: Files (.json, .json.gz), one for each rank, their folder, or a run that keeps them.
        against: The same of another trace, to explain the difference to.
        rank: Rank of the only file, if it does not say.

    Raises:
        TraceFileError: a file is no trace.
        UsageError: a path does not exist, or two files are of the same rank.
    """
    return TraceReport(
        read_job(_files(files), rank),
        None if against is None else read_job(_files(against)),
    )


def _files(paths: Paths) -> list[Path]:
    return trace_files(file for path in _paths(paths) for file in kept_files(path))


def _paths(paths: Paths) -> list[Path]:
    given = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    if not given:
        raise UsageError("trace: no file is given; give one file of each rank, or their folder")
    return [Path(path) for path in given]
