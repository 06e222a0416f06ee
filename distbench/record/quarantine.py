"""Damaged trials set aside, so that they can be measured again; nothing is deleted."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from distbench.core.errors import UsageError
from distbench.system.files import infrastructure_errors

QUARANTINE_FOLDER = "damaged"
"""Folder of trials that were set aside, in that of the run."""


def quarantine_trial(run: Path, trial: str) -> Path:
    """Move the folder *trial* of the run in *run* into its folder ``damaged``; return where it is now.

    Raises:
        UsageError: a link in its place would have files moved that are not of this run.
        InfrastructureError: it can't be moved.
    """
    root, folder, into = run.resolve(), run / trial, run / QUARANTINE_FOLDER
    if folder.resolve() != root / trial or into.resolve() != root / QUARANTINE_FOLDER:
        raise UsageError(f"{folder}: leads out of the run's folder by a link; remove the link")
    name = trial.replace("/", "-")
    with infrastructure_errors(into):
        into.mkdir(exist_ok=True)
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        moved = next(into / free for free in names if not (into / free).exists())
        folder.rename(moved)
    return moved
