"""Stored runs side by side, with the variance between earlier runs of their cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench.analysis.history import run_variances
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import RunVariances
from distbench.api.frames import table_frame
from distbench.api.stored_runs import drop_copies, readable_history_points
from distbench.core.text import one_line
from distbench.record import catalog
from distbench.record.run_folder import Run
from distbench.report.comparison import (
    RunComparison,
    compare_runs,
    comparison_sentences,
    comparison_table,
)
from distbench.report.fragment import fragment

_MOST_RUNS = 30
"""Maximum number of other runs for the variance between runs; reading them takes a few seconds."""


@dataclass(frozen=True)
class StoredRun:
    """An analysed run with its folder."""

    folder: Path
    analysis: RunAnalysis


@dataclass(frozen=True, repr=False)
class Comparison:
    """A run next to an earlier one; text and HTML of it say what changed."""

    result: RunComparison
    """The comparison in numbers."""

    @property
    def sentences(self) -> list[str]:
        """Counts of faster and slower cases, other differences, and what can't be compared."""
        return comparison_sentences(self.result)

    def table(self, as_: str | None = None) -> Any:
        """Ratios of the later run to the earlier one, a row for each case.

        Args:
            as_: As for ``Run.table``.

        Raises:
            UsageError: no such form, or its library is not installed.
        """
        return table_frame(comparison_table(self.result), as_)

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        return fragment(replace(comparison_table(self.result), notes=()), self.sentences)


def compare_stored(
    first: StoredRun, later: Sequence[StoredRun], folders: Iterable[Path], warn: Callable[[str], None]
) -> list[RunComparison]:
    """Compare each *later* run with the *first*.

    Args:
        folders: Folders of runs that give the variance between runs.
        warn: Called with a sentence for each run compared with itself, and for each that can't be read.
    """
    for run in later:
        if _is_same(first, run):
            warn(f"{first.folder} is compared with itself, so nothing can differ")
        elif first.analysis.info.run_id == run.analysis.info.run_id:
            copied = one_line(run.analysis.info.run_id, 60)
            warn(
                f"{first.folder} and {run.folder} are copies of one run, {copied}: the trials in both are "
                "compared with themselves"
            )
    earlier = _between_run_variance([first.analysis, *(run.analysis for run in later)], folders, warn)
    return [
        replace(compare_runs(first.analysis, run.analysis, earlier), is_same=_is_same(first, run))
        for run in later
    ]


def _is_same(first: StoredRun, other: StoredRun) -> bool:
    return first.folder.resolve() == other.folder.resolve()


def _between_run_variance(
    compared: Sequence[RunAnalysis], folders: Iterable[Path], warn: Callable[[str], None]
) -> RunVariances:
    """Variance between the latest other runs in *folders*, of the *compared* cases."""
    known, ids = {each.info.run_id for each in compared}, {row.case.id for row in compared[0].cases}
    stored: dict[Path, Run] = {
        run.folder.resolve(): run for folder in folders for run in catalog.runs_in(folder)
    }
    # names begin with the suite's, so the latest runs are those written last
    latest = sorted(stored.values(), key=lambda run: run.folder.stat().st_mtime)[-_MOST_RUNS:]
    different, _ = drop_copies(latest)
    return run_variances(
        (each for each in readable_history_points(different, warn) if each.run_id not in known), ids
    )
