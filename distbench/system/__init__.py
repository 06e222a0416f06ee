"""This machine: hardware, files, clock, memory, processes, Python environments. Without torch."""
