"""Launchers: one file a way to start processes, named as in a suite."""
