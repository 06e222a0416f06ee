"""Profiler traces: events of a rank, from the profiler itself or from a file. Without torch."""
