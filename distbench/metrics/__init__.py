"""Metrics: one file a metric, named as in a suite."""
