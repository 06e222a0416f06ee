"""Parallel strategies: one file a family, named as in a suite."""
