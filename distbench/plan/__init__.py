"""Plans: the cases of a suite on a machine, and the order of their trials."""

from distbench.core.job import PlannedTrial
from distbench.plan.planner import (
    Plan,
    PlannedCase,
    check_launcher,
    launcher_machine,
    make_plan,
    with_refusals,
)

__all__ = [
    "Plan",
    "PlannedCase",
    "PlannedTrial",
    "check_launcher",
    "launcher_machine",
    "make_plan",
    "with_refusals",
]
