"""Workloads: one file a model family, named as in a suite."""
