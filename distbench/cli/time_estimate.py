"""Estimate the time of a plan from earlier runs and short trials."""

from __future__ import annotations

import dataclasses
import glob
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from distbench.api.progress import observe_progress
from distbench.cli.interruption import resume_hint_on_abort
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.job import MEASURE
from distbench.core.measurement import MeasureConfig
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, format_duration, join_words
from distbench.jobs.measure import short_measure
from distbench.plan import Plan, PlannedTrial, make_plan
from distbench.record import Record, Status
from distbench.record.catalog import ESTIMATE_PREFIX, median_durations
from distbench.run import RunExecution, StopReason
from distbench.suite import Suite

_SHORT_WARMUP, _SHORT_STEPS = 1, 3
_EARLIER, _SHORT, _PREDICTED = "earlier runs", "a short trial", "a prediction"


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


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated seconds of each trial of a plan."""

    plan: Plan
    suite: Suite
    out: Path
    """Folder of the earlier runs."""
    seconds: Mapping[tuple[str, str], float]
    """Kind of job and case id -> seconds of a trial; unknown ones are missing."""
    short_trial_s: Mapping[str, float]
    """Case id -> those seconds that are from a short trial."""
    short_records: Sequence[Record]
    """The short trials."""
    short_measure: MeasureConfig
    """Settings of their measurement."""
    is_at_hand: bool = True
    """False: short trials can't be run here."""
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    """Case id -> those seconds that are predicted."""

    @classmethod
    def from_runs(cls, plan: Plan, suite: Suite, out: Path, *, is_at_hand: bool = True) -> TimeEstimate:
        """Estimate from earlier runs in *out*."""
        seconds = median_durations(out, map(_task_key, plan.trials), suite.measure)
        return cls(plan, suite, out, seconds, {}, (), suite.measure, is_at_hand)

    def add_short_trials(self, trials: ShortTrialResults) -> TimeEstimate:
        """Return the estimate with the times of short *trials* added."""
        found = {(MEASURE, case_id): seconds for case_id, seconds in trials.seconds.items()}
        known = {**self.seconds, **found}
        return replace(
            self,
            seconds=known,
            short_trial_s=trials.seconds,
            predicted_s={key: s for key, s in self.predicted_s.items() if key not in trials.seconds},
            short_records=trials.records,
            short_measure=trials.measure,
        )

    def add_predictions(self, seconds: Mapping[str, float]) -> TimeEstimate:
        """Return the estimate with predicted *seconds* by case id, for cases with no measured time."""
        new = {key: time for key, time in seconds.items() if (MEASURE, key) not in self.seconds}
        known = {**self.seconds, **{(MEASURE, key): time for key, time in new.items()}}
        return replace(self, seconds=known, predicted_s=new)

    @property
    def cases_without_time(self) -> list[Case]:
        """Timed cases whose trial time is unknown."""
        return [case for key, case in self._measured_cases.items() if key not in self.seconds]

    @property
    def cases_to_try(self) -> list[Case]:
        """Timed cases whose trial time is not measured."""
        return [
            case
            for key, case in self._measured_cases.items()
            if key not in self.seconds or case.id in self.predicted_s
        ]

    @property
    def short_trial_failures(self) -> dict[str, str]:
        """Name of a case whose short trial was not measured -> reason."""
        return {
            record.case.name: f"{record.status}: {one_line(record.reason)}"
            for record in self.short_records
            if record.status is not Status.MEASURED
        }

    @property
    def any_failed(self) -> bool:
        """True if a short trial failed, as it would in a run."""
        return any(record.status.is_failure for record in self.short_records)

    @property
    def total_s(self) -> float | None:
        """Seconds of all trials with a known time; None: all are unknown."""
        known = [self.seconds[_task_key(task)] for task in self._trials if _task_key(task) in self.seconds]
        return sum(known) if known else None

    @property
    def max_repeats(self) -> int:
        """Maximum number of trials added for noisy ones."""
        return len(self._measured_cases) * self.suite.measure.repeat_noisy

    @property
    def max_repeats_s(self) -> float | None:
        """Maximum seconds added for noisy trials; None: not known of every case."""
        if self.cases_without_time:
            return None
        return sum(self.seconds[key] for key in self._measured_cases) * self.suite.measure.repeat_noisy

    def trial_time(self, case: Case) -> tuple[float | None, str]:
        """Seconds of a timed trial of *case*, and their source; None, and the reason."""
        seconds = self.seconds.get((MEASURE, case.id))
        if seconds is None:
            return None, self.short_trial_failures.get(case.name, "no earlier run")
        if case.id in self.predicted_s:
            return seconds, _PREDICTED
        return seconds, _SHORT if case.id in self.short_trial_s else _EARLIER

    def total_text(self) -> str:
        """Describe the time of the whole run and its sources, or why it is unknown."""
        return (
            self.basis_text()
            if self.total_s is None
            else f"{format_duration(self.total_s)} of trials, plus preparation ({self.basis_text()})"
        )

    def basis_text(self) -> str:
        """Describe the sources and gaps of ``total_s``, or why there is none."""
        if self.total_s is not None:
            return "; ".join([self._source_text(), *self._caveats()])
        if self.short_trial_failures:
            return f"unknown: no short trial was measured: {self._failures_text()}"
        how = "; --estimate measures one short trial of each" if self.is_at_hand else ""
        return f"unknown: no earlier run of these cases in {self.out}{how}"

    def repeats_text(self) -> str:
        """Describe the time that repeating noisy trials may add."""
        time = f", {format_duration(self.max_repeats_s)}" if self.max_repeats_s else ""
        each = self.suite.measure.repeat_noisy
        return (
            f"noisy trials: up to {self.max_repeats:,} extra trials{time} (measure.repeat_noisy: {each} "
            "per case)"
        )

    @property
    def _trials(self) -> list[PlannedTrial]:
        return [task for task in self.plan.trials if not task.problem]

    @property
    def _measured_cases(self) -> dict[tuple[str, str], Case]:
        return {_task_key(task): task.case for task in self._trials if task.job.kind == MEASURE}

    def _source_text(self) -> str:
        if self.predicted_s:
            predicted = f"{_PREDICTED} of {format_count(len(self.predicted_s), 'case')}"
            measured = [_SHORT] if self.short_trial_s else []
            if len(self.seconds) > len(self.predicted_s) + len(self.short_trial_s):
                measured.insert(0, _EARLIER)
            return f"from {join_words([*measured, predicted])}"
        if not self.short_trial_s:
            return f"from {_EARLIER} of the same cases"
        measure = self.suite.measure
        had = f"{self.short_measure.warmup} warm-up and {self.short_measure.steps} timed steps"
        scaled = f"{had}, scaled to {measure.warmup} and {measure.steps}"
        if len(self.seconds) == len(self.short_trial_s):
            return f"from {_SHORT} of each case: {scaled}"
        return (
            f"from {_EARLIER}, and of {format_count(len(self.short_trial_s), 'case')} from {_SHORT}: {scaled}"
        )

    def _caveats(self) -> list[str]:
        """List the gaps and doubts of ``total_s``."""
        lacking = []
        if noisy := sum(bool(record.degraded) for record in self.short_records):
            lacking.append(f"other processes disturbed {format_count(noisy, 'short trial')}")
        if self.short_trial_failures:
            lacking.append(f"without cases whose short trial was not measured: {self._failures_text()}")
        elif cases := self.cases_without_time:
            how = " (--estimate measures them)" if self.is_at_hand else ""
            lacking.append(f"without {format_count(len(cases), 'case')} that have not run yet{how}")
        unknown = [task for task in self._trials if _task_key(task) not in self.seconds]
        others = Counter(task.job.kind for task in unknown if task.job.kind != MEASURE)
        kinds = [format_count(count, f"{kind} trial") for kind, count in others.items()]
        return [
            *lacking,
            *([f"without {join_limited(kinds)}, whose time is unknown before a first run"] if kinds else []),
        ]

    def _failures_text(self) -> str:
        return join_limited([f"{name}: {why}" for name, why in self.short_trial_failures.items()], limit=3)


def _task_key(task: PlannedTrial) -> tuple[str, str]:
    return task.job.kind, task.case.id
