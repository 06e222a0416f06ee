"""Data sources: one file a source, named as in a suite."""
