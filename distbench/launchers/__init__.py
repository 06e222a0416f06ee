"""Launchers: one file per way to start processes, named as in a suite."""
