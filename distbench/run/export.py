"""Export curves to a tracker in a subprocess: trackers import torch, which this process never does."""

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from distbench.core.errors import InfrastructureError, UsageError
from distbench.record.run_folder import write_json
from distbench.system.temporary import temporary_folder


def export_curves(tracker: str, folder: Path, project: str, runs: list[dict[str, Any]]) -> None:
    """Send *runs* (``analysis.training_curves.TrainingCurve`` as plain JSON types) to the tool *tracker*.

    Raises:
        UsageError: the folder *folder* is not empty, or can't be created.
        InfrastructureError: the tracker failed; it leaves nothing behind.
    """
    was_there = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            # a second copy in the same folder would draw every point twice
            raise UsageError(f"--into {folder}: not empty; remove it or choose another folder")
    except OSError as error:
        raise UsageError(
            f"--into {folder}: can't be used: {error.strerror}; choose another folder"
        ) from error
    try:
        _run_exporter(tracker, folder, project, runs)
    except BaseException:
        # half of the curves could be mistaken for all, and would block the next attempt
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            with suppress(OSError):
                folder.mkdir()
        raise


def _run_exporter(tracker: str, folder: Path, project: str, runs: list[dict[str, Any]]) -> None:
    with temporary_folder() as scratch:
        file = scratch / "export.json"
        write_json(file, {"to": tracker, "into": str(folder), "project": project, "runs": runs})
        done = subprocess.run(
            [sys.executable, "-m", "distbench.worker", "export", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else f"exited with code {done.returncode}"
        raise InfrastructureError(f"export to {tracker}: {why}")
