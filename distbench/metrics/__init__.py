"""Metrics: one file per metric, named as in a suite."""
