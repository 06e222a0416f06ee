"""Run one short trial of each case for ``plan --estimate``."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from distbench.cli.interruption import resume_hint_on_abort
from distbench.cli.progress import observe_progress
from distbench.core.case import Case, MeasureConfig
from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.job import MEASURE
from distbench.jobs.measure import short_measure
from distbench.plan import make_plan
from distbench.record import Record
from distbench.record.catalog import ESTIMATE_PREFIX, median_durations
from distbench.run import RunExecution, StopReason
from distbench.suite import Suite

_SHORT_WARMUP, _SHORT_STEPS = 1, 3


@dataclasses.dataclass(frozen=True)
class ShortTrialResults:
    """Results of short trials."""

    seconds: dict[str, float]
    """Case id -> seconds of a trial as long as the suite requests."""
    records: Sequence[Record]
    stopped: StopReason
    """Reason for an early stop; empty if there was none."""
    measure: MeasureConfig
    """Settings of their measurement."""


def run_short_trials(
    suite: Suite, cases: Sequence[Case], out: Path, command: Sequence[str]
) -> ShortTrialResults:
    """Run a short trial of each of *cases* of *suite*, and keep nothing of it.

    Args:
        out: Folder of runs: on the disk, and on the nodes, that a run would have.

    Raises:
        SuiteError: the suite can't be run here.
        UsageError: *out* can't be written.
        InfrastructureError: the disk is full, or nodes are missing.
    """
    short = _short_suite(suite, cases)
    with (
        _temporary_run_folder(out) as folder,
        resume_hint_on_abort(""),
        observe_progress(quiet=False) as watcher,
    ):
        execution = RunExecution.create(short, folder, command)
        try:
            stopped = execution.execute(watcher)
        except InfrastructureError as error:
            raise InfrastructureError(error.problem, "estimates are not stored; run plan again") from error
        asked = [(MEASURE, case.id) for case in cases]
        times = median_durations(folder, asked, suite.measure)
        records = execution.run.records()
    return ShortTrialResults(
        {case_id: time for (_, case_id), time in times.items()}, records, stopped, short.measure
    )


def _short_suite(suite: Suite, cases: Sequence[Case]) -> Suite:
    """Reduce *suite* to one short timed trial of each of *cases*."""
    # the plan must also be able to contain the excluded cases
    every = [item.case for item in make_plan(dataclasses.replace(suite, only=())).cases]
    measure = short_measure(suite.measure, every, _SHORT_WARMUP, _SHORT_STEPS)
    only = tuple(glob.escape(case.name) for case in cases)
    return dataclasses.replace(suite, jobs={MEASURE: measure}, only=only)


@contextmanager
def _temporary_run_folder(out: Path) -> Iterator[Path]:
    """Create a folder in *out* for a run that is no result; remove it afterwards with its content."""
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=ESTIMATE_PREFIX, dir=out, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"--out {out}: can't create a folder for the estimate: {error.strerror}") from error
    try:
        with made as folder:
            yield Path(folder)
    finally:
        if is_new:
            # parent folders that were created, too, stay, as those of a run would
            with suppress(OSError):
                out.rmdir()
