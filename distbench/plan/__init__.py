"""Plans: the cases of a suite on a machine, and the order of their trials."""

from distbench.core.job import PlannedTrial
from distbench.plan.planner import (
    STARTED_ONCE,
    Plan,
    PlannedCase,
    check_launcher,
    check_launcher_options,
    check_started_once,
    launcher_machine,
    make_plan,
    with_refusals,
)

__all__ = [
    "STARTED_ONCE",
    "Plan",
    "PlannedCase",
    "PlannedTrial",
    "check_launcher",
    "check_launcher_options",
    "check_started_once",
    "launcher_machine",
    "make_plan",
    "with_refusals",
]
