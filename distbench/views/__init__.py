"""Plug-ins: one file is one view of a run, a word of ``distbench show --view``."""
