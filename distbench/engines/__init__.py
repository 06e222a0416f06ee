"""Frameworks that take the steps of a strategy."""
