"""Plans: which cases a suite makes on a machine, and in which order they are tried."""

from distbench.plan.planning import Plan, Planned, make
from distbench.plan.tasks import Task

__all__ = ["Plan", "Planned", "Task", "make"]
