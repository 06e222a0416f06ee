"""Runs as occasions: as much of them as a history needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial

from distbench.analysis.history import Occasion
from distbench.analysis.run import AnalysedRun
from distbench.cli.output import note
from distbench.core.errors import DistbenchError
from distbench.core.text import one_line
from distbench.record.reading import rereading
from distbench.record.run_folder import Run
from distbench.record.untrusted import untrusted_records


def occasions(runs: Iterable[Run]) -> Iterator[Occasion | str]:
    """Each of *runs* as an occasion, or why it can't be read."""
    for run in runs:
        try:
            with untrusted_records(str(run.folder)):
                occasion = rereading(partial(_occasion, run))
        except DistbenchError as error:
            yield str(error)
        else:
            yield occasion


def readable(runs: Iterable[Run]) -> Iterator[Occasion]:
    """Those of *runs* that can be read, each as an occasion; of the others it is said why."""
    for each in occasions(runs):
        if isinstance(each, str):
            note(f"distbench: warning: skipping a run: {one_line(each)}")
        else:
            yield each


def _occasion(run: Run) -> Occasion:
    # records alone do not tell the day and the machine, without which it is no point
    info, contents = run.info(), run.contents()
    # samples are not needed here, and loading those of a hundred runs takes time
    records = [
        dataclasses.replace(record, samples={}, warmup_losses=[]) if record.job.kind == "measure" else record
        for record in contents.records
    ]
    return Occasion.of(AnalysedRun(info, records, contents.damaged))
