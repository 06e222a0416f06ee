"""The files by which a run and the ranks of one trial talk, all in the trial's folder."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from distbench.case import Case, Choice, Limits, Measure
from distbench.files import write_whole
from distbench.job import MEASURE, Job

PASSES = ("warmup", "time", "count", "profile", "check", "unsynced")
"""The passes of a trial that measures, in their order."""

CHECKPOINT = "checkpoint"
"""The phase of a trial of checkpoints; its steps count builds, saves and loads as well as steps."""

STEPPING = (*PASSES, CHECKPOINT, "converge")
"""The phases that have steps."""

SKETCH = tuple(f"s{i:02}" for i in range(16))
"""The columns of a tensor's sketch in the tables ``check_tensors`` and ``checkpoint_tensors``."""


@dataclass(frozen=True)
class TrialFile:
    """What every rank is told (``trial.json``)."""

    run_id: str
    case: Case
    measure: Measure
    limits: Limits
    metrics: list[Choice]
    weights: str
    """File of the initial weights."""
    job: Job = MEASURE
    leaves: str = ""
    """File to leave for later trials of the run; empty: none."""
    reads: str = ""
    """File that an earlier trial of the run left; empty: none."""

    def write(self, file: Path) -> None:
        """Write the file; the folder exists."""
        write_whole(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, file: Path) -> TrialFile:
        """Return what ``write`` wrote."""
        data = json.loads(file.read_text())
        data["case"] = Case.from_json(data["case"])
        data["measure"] = Measure(**data["measure"])
        data["metrics"] = [Choice(**choice) for choice in data["metrics"]]
        data["limits"] = Limits(**data["limits"])
        data["job"] = Job(**data["job"])
        return cls(**data)


def result_file(folder: Path, rank: int) -> Path:
    """Return the file of what *rank* measured; it exists only if the rank delivered all."""
    return folder / f"rank{rank}.json"


def error_file(folder: Path, rank: int) -> Path:
    """Return the file that *rank* writes when it raises."""
    return folder / f"rank{rank}.error.json"


def log_file(folder: Path, rank: int) -> Path:
    """Return the file that gets all that *rank* prints."""
    return folder / f"rank{rank}.log"


def progress_file(folder: Path, rank: int) -> Path:
    """Return the file in which *rank* shows that it is alive and where it is."""
    return folder / f"rank{rank}.progress"


class Progress:
    """A rank's sign of life: a few bytes overwritten in place, cheap enough for every step."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)

    def at(self, phase: str, step: int = 0) -> None:
        """Say that *step* of *phase* begins."""
        os.pwrite(self._descriptor, f"{phase} {step}\n".ljust(32).encode(), 0)


def read_progress(file: Path) -> tuple[str, int, float] | None:
    """Return a rank's phase, step and the time of its last sign of life; None before the first."""
    try:
        words = file.read_text().split()
        return words[0], int(words[1]), file.stat().st_mtime
    except (FileNotFoundError, IndexError, ValueError):
        return None
