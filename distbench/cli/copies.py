"""Detect copies of a run, so that its trials are counted once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from distbench.core.errors import UsageError
from distbench.core.grouping import group_pairs
from distbench.core.units import format_count
from distbench.record.run_folder import Run

_TrialKey = tuple[Hashable, str]


def drop_copies(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """Of the copies of a run in *runs*, keep only the one with most trials.

    A second list describes each copy with trials that the kept one lacks. A folder that was copied and then
    resumed in both places has the same run id twice.
    """
    runs = list(runs)
    left_out, lines = set(), []
    for (run_id, _), copies in group_pairs((_run_identity(run), run) for run in runs).items():
        if len(copies) == 1:
            continue
        trials = {run.folder: _trial_keys(run) for run in copies}
        kept = max(copies, key=lambda run: len(trials[run.folder]))
        for copy in copies:
            if copy is kept:
                continue
            left_out.add(copy.folder)
            if own := trials[copy.folder] - trials[kept.folder]:
                lines.append(
                    f"{copy.folder}: skipped, because it and {kept.folder} are copies of run {run_id}. "
                    f"It has {format_count(len(own), 'trial')} that the other copy does not have; read "
                    "it separately"
                )
    return [run for run in runs if run.folder not in left_out], lines


def _run_identity(run: Run) -> tuple[str, str]:
    """Id of *run*, and its creation time; its folder if ``run.json`` can't be read."""
    try:
        info = run.info()
    except UsageError:
        return str(run.folder), ""
    return info.run_id, info.created


def _trial_keys(run: Run) -> set[_TrialKey]:
    return {(record.key, record.started) for record in run.records()}
