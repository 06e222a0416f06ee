"""Plans: which cases a suite makes on a machine, and in which order they are tried."""

from distbench.plan.planning import Plan, Planned, make

__all__ = ["Plan", "Planned", "make"]
