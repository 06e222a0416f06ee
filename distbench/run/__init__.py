"""A run: trials one after another, each launched, monitored, collected and stored at once."""

from distbench.run.builds import cases_to_build
from distbench.run.execution import RunExecution, run_follow_ups, run_trials
from distbench.run.interruption import (
    AllocationTimeLimit,
    StopReason,
    StopRequest,
    ignore_time_warning,
    raise_on_termination,
)
from distbench.run.launch import trial_launch
from distbench.run.observer import Observer, RemainingTime
from distbench.run.trial_runner import TrialRunner

__all__ = [
    "AllocationTimeLimit",
    "Observer",
    "RemainingTime",
    "RunExecution",
    "StopReason",
    "StopRequest",
    "TrialRunner",
    "cases_to_build",
    "ignore_time_warning",
    "raise_on_termination",
    "run_follow_ups",
    "run_trials",
    "trial_launch",
]
