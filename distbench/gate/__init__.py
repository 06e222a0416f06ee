"""The gate: a candidate against a baseline, run side by side, judged by the rules of the suite."""

from distbench.gate.verdicts import CaseVerdict, Finding, Result

__all__ = ["CaseVerdict", "Finding", "Result"]
