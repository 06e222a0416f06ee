"""One short trial of each case, by which ``plan --estimate`` tells how long a run takes."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from distbench.cli.interruption import resumable
from distbench.cli.progress import observer
from distbench.core.case import Case, Measure
from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.job import MEASURE
from distbench.jobs.measure import shortened
from distbench.plan import make
from distbench.record import Record
from distbench.record.catalog import ESTIMATE, usual_times
from distbench.run import Execution, Stopped
from distbench.suite import Suite

_WARMUP, _STEPS = 1, 3


@dataclasses.dataclass(frozen=True)
class ShortTrials:
    """What came of them."""

    seconds: dict[str, float]
    """Case id -> seconds of a trial as long as the suite asks for."""
    records: Sequence[Record]
    stopped: Stopped
    """What ended them before their end."""
    measure: Measure
    """How they were measured."""


def short_trials(suite: Suite, cases: Sequence[Case], out: Path, command: Sequence[str]) -> ShortTrials:
    """Run a short trial of each of *cases* of *suite*, and keep nothing of it.

    Args:
        out: Where the runs are: on the disk, and on the nodes, that a run would have.

    Raises:
        SuiteError: the suite can't be run here.
        UsageError: *out* can't be written.
        InfrastructureError: the disk is full, or nodes are missing.
    """
    short = _shortened(suite, cases)
    with _folder(out) as folder, resumable(""), observer(quiet=False) as watcher:
        execution = Execution.start(short, folder, command)
        try:
            stopped = execution.execute(watcher)
        except InfrastructureError as error:
            raise InfrastructureError(error.problem, "nothing is kept of an estimate: plan again") from error
        asked = [(MEASURE, case.id) for case in cases]
        times = usual_times(folder, asked, suite.measure)
        records = execution.run.records()
    return ShortTrials(
        {case_id: time for (_, case_id), time in times.items()}, records, stopped, short.measure
    )


def _shortened(suite: Suite, cases: Sequence[Case]) -> Suite:
    """*suite* with one short timed trial of each of *cases*, and nothing else."""
    # those that are left out have to be plannable, too
    every = [item.case for item in make(dataclasses.replace(suite, only=())).cases]
    measure = shortened(suite.measure, every, _WARMUP, _STEPS)
    only = tuple(glob.escape(case.name) for case in cases)
    return dataclasses.replace(suite, jobs={MEASURE: measure}, only=only)


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder in *out* for a run that is no result, removed with what is in it."""
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=ESTIMATE, dir=out, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"--out {out}: can't create a folder for the estimate: {error.strerror}") from error
    try:
        with made as folder:
            yield Path(folder)
    finally:
        if is_new:
            # parents that were made too stay, as those of a run would
            with suppress(OSError):
                out.rmdir()
