"""Plans: the cases of a suite on a machine, and the order of their trials."""

from distbench.core.job import PlannedTrial
from distbench.plan.planner import Plan, Planned, check_startable, machine_of, make, refusing

__all__ = ["Plan", "Planned", "PlannedTrial", "check_startable", "machine_of", "make", "refusing"]
