"""A plan with its time estimate, limits and peak memory."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from distbench.cli.plan_peaks import Peaks, trace_peaks
from distbench.cli.plan_predictions import PlanPredictions, predict_plan
from distbench.cli.time_estimate import TimeEstimate
from distbench.cli.user_models import mark_refused_cases
from distbench.core.case import PluginChoice
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.core.measurement import TimeLimits
from distbench.plan import Plan, PlannedCase, launcher_machine, make_plan, with_refusals
from distbench.plan.environments import detect_environments
from distbench.plan.time_limits import all_trial_limits, prepare_limit
from distbench.run.memory_fit import misfit_text
from distbench.suite import Suite


@dataclass(frozen=True)
class PlannedRun:
    """A plan with what is shown beside it."""

    suite: Suite
    machine: Machine
    plan: Plan
    expected: TimeEstimate
    out: Path
    """Folder that would hold the run."""
    peaks: Peaks | None = None
    """Traced peak memory of the cases that can run; None: it was not requested."""
    predictions: PlanPredictions | None = None
    """Predictions of the cases that can run; None: they were not requested."""

    @property
    def is_at_hand(self) -> bool:
        """False: the machine is one that the user described, and has no launches to show."""
        return self.expected.is_at_hand

    def predicted_misfit(self, item: PlannedCase) -> str:
        """Reason why the case of *item* does not fit by its prediction; empty: it may, or none was asked."""
        return self.predictions.misfit(item.case.id, self.machine) if self.predictions else ""

    @cached_property
    def trial_limits(self) -> list[TimeLimits]:
        """Limits of each trial."""
        return all_trial_limits(self.suite.limits, self.plan.trials, self.suite.measure)

    @property
    def prepare_limit_s(self) -> float:
        """Seconds after which preparing is stopped."""
        cases = [item.case for item in self.plan.cases if item.problem is None]
        return prepare_limit(self.suite.limits, cases)

    @property
    def upper_bound_s(self) -> float:
        """Seconds after which the run is over, if everything hangs."""
        spans = [own.trial for own in self.trial_limits]
        repeats = self.expected.max_repeats * max(spans, default=0.0)
        return self.prepare_limit_s + math.fsum(spans) + repeats


def plan_run(
    suite: Suite,
    out: Path,
    described: Machine | None,
    *,
    quiet: bool,
    trace: bool = False,
    rates: str | None = None,
) -> PlannedRun:
    """Plan *suite* for the machine of its launcher, or for a *described* one that is not at hand.

    *trace*: trace the peak memory of its cases as well. *rates*: predict their steps from the rates of a run
    of that name, or if it is empty from those that are at hand; None: predict nothing.

    Raises:
        SuiteError: all mistakes that can be known before launch.
        UsageError: there is no torch to trace with, or there are no rates to predict with.
    """
    if described and suite.device == "cpu":
        message = "the machine that is described has GPUs; use device: auto or cuda"
        raise SuiteError([suite.source_map.mistake(("device",), message, "cpu")])
    if described:
        # ranks of a machine that is not at hand need no launcher, only devices
        suite = dataclasses.replace(suite, launcher=PluginChoice("local"))
    machine = described or launcher_machine(suite)
    machine = detect_environments(suite, machine)
    planned = mark_refused_cases(suite, make_plan(suite, machine), machine, quiet=quiet)
    share = suite.limits.predicted_memory
    is_traced = trace or share is not None
    peaks = trace_peaks(planned, machine, quiet=quiet) if is_traced else None
    if share is not None and peaks is not None:
        # as a run does before it launches anything
        planned = with_refusals(
            suite, planned, machine, lambda case: misfit_text(case, machine, peaks, share) or None
        )
    expected = TimeEstimate.from_runs(planned, suite, out, is_at_hand=not described)
    predictions = None
    if rates is not None:
        predictions = predict_plan(planned, machine, out, rates, suite.cost)
        expected = expected.add_predictions(predictions.trial_seconds(suite.measure))
    return PlannedRun(suite, machine, planned, expected, out, peaks, predictions)
