"""Stored runs: damaged trials in words, copies of a run, and runs as points of a history."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.core.errors import DistbenchError, UsageError
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.record.record_reader import DamagedTrial, damage_summary, retry_eagerly, untrusted_records
from distbench.record.run_folder import Run

_TrialKey = tuple[Hashable, str]


def damage_lines(damaged: Sequence[DamagedTrial], folder: Path) -> list[str]:
    """A line on trials of the run in *folder* that can't be read; empty if all can."""
    text = damage_summary(damaged)
    return [f"{one_line(text)}; see distbench check {shlex.quote(str(folder))}"] if text else []


def damage_json(*runs: RunAnalysis) -> list[dict[str, str]]:
    """Trials of *runs* that can't be read, as ``--json`` lists them."""
    return [{"run_id": run.info.run_id, **trial.to_json()} for run in runs for trial in run.damaged]


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


def load_history_points(runs: Iterable[Run]) -> Iterator[tuple[Run, HistoryRun | str]]:
    """Load each of *runs* as a point of a history, or the reason why it can't be read.

    A run that disappears meanwhile is left out.
    """
    for run in runs:
        try:
            with untrusted_records(str(run.folder)):
                point = retry_eagerly(partial(_history_point, run))
        except DistbenchError as error:
            if run.folder.exists():
                yield run, _with_folder(str(error), run)
        else:
            yield run, point


def _with_folder(reason: str, run: Run) -> str:
    """*reason*, which names the folder of *run* if it does not yet."""
    return reason if str(run.folder) in reason else f"{run.folder}: {reason}"


def readable_history_points(runs: Iterable[Run], warn: Callable[[str], None]) -> Iterator[HistoryRun]:
    """Load those of *runs* that can be read, each as a point; *warn* of the others."""
    for _, each in load_history_points(runs):
        if isinstance(each, str):
            warn(f"skipping a run: {one_line(each)}")
        else:
            yield each


def _history_point(run: Run) -> HistoryRun:
    # records alone do not contain the day and the machine, which a point needs
    info, contents = run.info(), run.contents()
    # samples are not needed here, and loading those of a hundred runs takes time
    records = [
        dataclasses.replace(record, samples={}, warmup_losses=[]) if record.job.kind == "measure" else record
        for record in contents.records
    ]
    return HistoryRun.of(RunAnalysis(info, records, contents.damaged))
