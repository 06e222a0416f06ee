"""Analysis of profiler traces: parts of a step, collectives, and the largest losses."""
