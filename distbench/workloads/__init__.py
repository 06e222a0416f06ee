"""Workload plug-ins: one file per model family, named as in a suite."""
