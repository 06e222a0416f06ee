"""Load the data of runs that a history needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial

from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.cli.output import print_note
from distbench.core.errors import DistbenchError
from distbench.core.text import one_line
from distbench.record.record_reader import retry_eagerly, untrusted_records
from distbench.record.run_folder import Run


def load_history_points(runs: Iterable[Run]) -> Iterator[HistoryRun | str]:
    """Load each of *runs* as a point of a history, or the reason why it can't be read."""
    for run in runs:
        try:
            with untrusted_records(str(run.folder)):
                occasion = retry_eagerly(partial(_history_point, run))
        except DistbenchError as error:
            yield str(error)
        else:
            yield occasion


def readable_history_points(runs: Iterable[Run]) -> Iterator[HistoryRun]:
    """Load those of *runs* that can be read, each as a point; warn about the others."""
    for each in load_history_points(runs):
        if isinstance(each, str):
            print_note(f"distbench: warning: skipping a run: {one_line(each)}")
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
