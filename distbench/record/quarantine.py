"""Quarantine damaged trials, so that they can be measured again; nothing is deleted."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from distbench.core.errors import UsageError
from distbench.system.files import infrastructure_errors

QUARANTINE_FOLDER = "damaged"
"""Folder for quarantined trials, in the run's folder."""


def quarantine_trial(run: Path, trial: str) -> Path:
    """Move the folder *trial* of *run* into its folder ``damaged``; return the new path.

    Raises:
        UsageError: because of a symbolic link, files outside of the run would be moved.
        InfrastructureError: it can't be moved.
    """
    root, folder, into = run.resolve(), run / trial, run / QUARANTINE_FOLDER
    if folder.resolve() != root / trial or into.resolve() != root / QUARANTINE_FOLDER:
        raise UsageError(f"{folder}: leaves the run's folder through a symbolic link; remove the link")
    name = trial.replace("/", "-")
    with infrastructure_errors(into):
        into.mkdir(exist_ok=True)
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        moved = next(into / free for free in names if not (into / free).exists())
        folder.rename(moved)
    return moved
