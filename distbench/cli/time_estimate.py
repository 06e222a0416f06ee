"""How long the trials of a plan take, as far as earlier runs and short trials tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distbench.cli.short_trials import ShortTrials
from distbench.core.case import Case, Measure
from distbench.core.job import MEASURE
from distbench.core.text import listed, one_line
from distbench.core.units import count_text, duration_text
from distbench.plan import Plan, PlannedTrial
from distbench.record import Record, Status
from distbench.record.catalog import usual_times
from distbench.suite import Suite

_EARLIER, _SHORT = "earlier runs", "a short trial"


@dataclass(frozen=True)
class Expected:
    """The seconds of each trial of a plan."""

    plan: Plan
    suite: Suite
    out: Path
    """Where the earlier runs are."""
    seconds: Mapping[tuple[str, str], float]
    """Kind of job and case id -> seconds of a trial; those that are not known are missing."""
    short: Mapping[str, float]
    """Case id -> those seconds that are from a short trial."""
    tried: Sequence[Record]
    """The short trials."""
    tried_as: Measure
    """How they were measured."""

    @classmethod
    def from_runs(cls, plan: Plan, suite: Suite, out: Path) -> Expected:
        """What earlier runs in *out* tell."""
        seconds = usual_times(out, map(_key, plan.trials), suite.measure)
        return cls(plan, suite, out, seconds, {}, (), suite.measure)

    def with_short(self, trials: ShortTrials) -> Expected:
        """This, and what short *trials* tell."""
        found = {(MEASURE, case_id): seconds for case_id, seconds in trials.seconds.items()}
        known = {**self.seconds, **found}
        return replace(
            self, seconds=known, short=trials.seconds, tried=trials.records, tried_as=trials.measure
        )

    @property
    def unknown(self) -> list[Case]:
        """Cases that are timed, and of whose trials the time is not known."""
        return [case for key, case in self._timed.items() if key not in self.seconds]

    @property
    def untimed(self) -> dict[str, str]:
        """Name of a case whose short trial was not measured -> why."""
        return {
            record.case.name: f"{record.status}: {one_line(record.reason)}"
            for record in self.tried
            if record.status is not Status.MEASURED
        }

    @property
    def has_failed(self) -> bool:
        """Whether a short trial failed, as it would in a run."""
        return any(record.status.is_failure for record in self.tried)

    @property
    def total(self) -> float | None:
        """Seconds of all trials whose time is known; None: that of none is."""
        known = [self.seconds[_key(task)] for task in self._trials if _key(task) in self.seconds]
        return sum(known) if known else None

    @property
    def repeats(self) -> int:
        """Trials that noisy ones may add at most."""
        return len(self._timed) * self.suite.measure.repeat_noisy

    @property
    def repeats_s(self) -> float | None:
        """Seconds that noisy trials may add at most; None: not known of every case."""
        if self.unknown:
            return None
        return sum(self.seconds[key] for key in self._timed) * self.suite.measure.repeat_noisy

    def of(self, case: Case) -> tuple[float | None, str]:
        """Seconds of a timed trial of *case*, and from what they are known; None, and why not."""
        seconds = self.seconds.get((MEASURE, case.id))
        if seconds is None:
            return None, self.untimed.get(case.name, "no earlier run")
        return seconds, _SHORT if case.id in self.short else _EARLIER

    def text(self) -> str:
        """The time of the whole run with what it is made of, or why it is not known."""
        return (
            self.note()
            if self.total is None
            else f"{duration_text(self.total)} of trials, and preparing ({self.note()})"
        )

    def note(self) -> str:
        """What ``total`` is made of, and what it lacks; why there is none."""
        if self.total is not None:
            return "; ".join([self._basis(), *self._lacking()])
        if self.untimed:
            return f"unknown: no short trial was measured: {self._untimed_text()}"
        return (
            f"unknown: no earlier run of these cases in {self.out}; "
            "--estimate runs one short trial of each, and tells"
        )

    def repeats_text(self) -> str:
        """How much repeating noisy trials may add."""
        time = f", {duration_text(self.repeats_s)}" if self.repeats_s else ""
        each = self.suite.measure.repeat_noisy
        return f"noisy trials: {self.repeats:,} more at most{time} (measure.repeat_noisy: {each} per case)"

    @property
    def _trials(self) -> list[PlannedTrial]:
        return [task for task in self.plan.trials if not task.problem]

    @property
    def _timed(self) -> dict[tuple[str, str], Case]:
        return {_key(task): task.case for task in self._trials if task.job.kind == MEASURE}

    def _basis(self) -> str:
        if not self.short:
            return f"from {_EARLIER} of the same cases"
        measure = self.suite.measure
        had = f"{self.tried_as.warmup} warm-up and {self.tried_as.steps} timed steps"
        scaled = f"{had}, scaled to {measure.warmup} and {measure.steps}"
        if len(self.seconds) == len(self.short):
            return f"from {_SHORT} of each case: {scaled}"
        return f"from {_EARLIER}, and of {count_text(len(self.short), 'case')} from {_SHORT}: {scaled}"

    def _lacking(self) -> list[str]:
        """What ``total`` lacks, and what makes it doubtful."""
        lacking = []
        if noisy := sum(bool(record.degraded) for record in self.tried):
            lacking.append(f"others disturbed {count_text(noisy, 'short trial')}")
        if self.untimed:
            lacking.append(f"without cases whose short trial was not measured: {self._untimed_text()}")
        elif cases := self.unknown:
            lacking.append(f"without {count_text(len(cases), 'case')} not run yet (--estimate tries them)")
        unknown = [task for task in self._trials if _key(task) not in self.seconds]
        others = Counter(task.job.kind for task in unknown if task.job.kind != MEASURE)
        kinds = [count_text(count, f"{kind} trial") for kind, count in others.items()]
        return [*lacking, *([f"without {listed(kinds)}, whose time a first run tells"] if kinds else [])]

    def _untimed_text(self) -> str:
        return listed([f"{name}: {why}" for name, why in self.untimed.items()], most=3)


def _key(task: PlannedTrial) -> tuple[str, str]:
    return task.job.kind, task.case.id
