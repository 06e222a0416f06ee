"""Plans: the cases of a suite on a machine, and the order of their trials."""

from distbench.plan.planner import Plan, Planned, check_startable, machine_of, make, refusing
from distbench.plan.tasks import Task

__all__ = ["Plan", "Planned", "Task", "check_startable", "machine_of", "make", "refusing"]
