"""Sends curves to a tracker from a separate process: trackers import torch, which this one never does."""

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from distbench.core.errors import InfrastructureError, UsageError
from distbench.record.run_folder import write_json
from distbench.system.temporary import temporary_folder


def send(to: str, into: Path, project: str, runs: list[dict[str, Any]]) -> None:
    """Send *runs* (``analysis.curves.Curves`` as plain JSON types) to the tool *to*.

    Raises:
        UsageError: the folder *into* is not empty, or can't be created.
        InfrastructureError: the tracker failed; it leaves nothing behind.
    """
    was_there = into.is_dir()
    try:
        into.mkdir(parents=True, exist_ok=True)
        if any(into.iterdir()):
            # a second copy in the same folder would draw every point twice
            raise UsageError(f"--into {into}: not empty; remove it or choose another folder")
    except OSError as error:
        raise UsageError(f"--into {into}: can't be used: {error.strerror}; choose another folder") from error
    try:
        _send(to, into, project, runs)
    except BaseException:
        # half of the curves could be mistaken for all, and would block the next attempt
        shutil.rmtree(into, ignore_errors=True)
        if was_there:
            with suppress(OSError):
                into.mkdir()
        raise


def _send(to: str, into: Path, project: str, runs: list[dict[str, Any]]) -> None:
    with temporary_folder() as scratch:
        file = scratch / "export.json"
        write_json(file, {"to": to, "into": str(into), "project": project, "runs": runs})
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
        raise InfrastructureError(f"export to {to}: {why}")
