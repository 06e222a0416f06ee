"""Load stored runs: warn about damaged trials, leave out copies of a run."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.cost import with_price
from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.cli.options import parse_option
from distbench.cli.output import print_warning
from distbench.core.errors import DistbenchError, UsageError
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_count
from distbench.record.record_reader import DamagedTrial, damage_summary, retry_eagerly, untrusted_records
from distbench.record.run_folder import Run

_TrialKey = tuple[Hashable, str]


def load_run(run: Run) -> RunAnalysis:
    """Load and analyse *run*; warn about damaged trials on stderr.

    Raises:
        UsageError: this is not the folder of a run.
        RecordError: neither ``run.json`` nor a record can be read.
    """
    made = RunAnalysis.read(run)
    warn_about_damage(made.damaged, run.folder)
    return made


def apply_price(run: RunAnalysis, price: str) -> RunAnalysis:
    """Apply the *price* per device and hour from the command line to *run*; empty: that of its suite, if any.

    Raises:
        UsageError: it is no amount with a currency.
    """
    suite = parse_option("--price", price, partial(with_price, run.info.suite))
    return run if suite is None else replace(run, info=replace(run.info, suite=suite))


def warn_about_damage(damaged: Sequence[DamagedTrial], folder: Path) -> None:
    """Warn on stderr about trials of the run in *folder* that can't be read, if there are any."""
    for line in damage_lines(damaged, folder):
        print_warning(line)


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


def readable_history_points(runs: Iterable[Run]) -> Iterator[HistoryRun]:
    """Load those of *runs* that can be read, each as a point; warn about the others."""
    for _, each in load_history_points(runs):
        if isinstance(each, str):
            print_warning(f"skipping a run: {one_line(each)}")
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
