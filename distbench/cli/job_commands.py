"""Run a command as a cluster job and print its output."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from distbench.cli.output import print_note, print_text
from distbench.cli.queue_submission import launcher_queue, make_submission, submit_job
from distbench.core.errors import InfrastructureError
from distbench.launchers.base import JobQueue, QueuedJob
from distbench.record.run_folder import SUBMISSION_FOLDER, resumable_write_errors
from distbench.run.interruption import raise_on_termination
from distbench.suite import Suite

_NO_JOBS = "this launcher can't submit jobs; run distbench doctor on that machine"
_POLL_S = 1.0
_NO_ANSWER_S = 60.0


def run_as_job(suite: Suite, out: Path, nodes: int | None, words: Sequence[str]) -> int:
    """Run ``distbench doctor`` with *words* on nodes from the launcher of *suite*; return its exit code.

    Args:
        out: Folder of runs, which the nodes see: the submission and its output are in it meanwhile.

    Raises:
        UsageError: the launcher has no job queue, or its jobs can't be followed.
        InfrastructureError: the engine refuses, or does not answer.
        KeyboardInterrupt: Ctrl-C; the job is cancelled.
    """
    queue = launcher_queue(suite.launcher.name, _NO_JOBS)
    with resumable_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".doctor-", dir=out.resolve()))
    try:
        file, logs = folder / "suite.yaml", folder / SUBMISSION_FOLDER
        file.write_text(suite.text)
        logs.mkdir()
        arguments = ["doctor", str(file), "--out", str(out.resolve()), *words]
        submission = make_submission(suite, arguments, nodes, {file.name: suite.text}, folder=folder)
        job = submit_job(submission, queue)
        print_note(f"submitted job {job} to {suite.launcher.name}; Ctrl-C cancels it")
        ended = _wait_for_job(queue, job)
        queue.fetch(job, folder, has_ended=True)
        texts = [_read_log(log) for log in queue.log_files(job, logs)]
        for text, show in zip(texts, (print_text, print_note), strict=True):
            if text:
                show(text)
        if ended.exit_code is None or not any(texts):
            # a job that is cancelled while it waits ends with 0
            raise InfrastructureError(f"job {job} ended without a result: {ended.state_text}")
        return ended.exit_code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_log(log: Path) -> str:
    return log.read_text(errors="replace").rstrip() if log.is_file() else ""


def _wait_for_job(queue: JobQueue, name: str) -> QueuedJob:
    """Wait for the end of job *name*."""
    shown, answered = "", time.monotonic()
    try:
        with raise_on_termination():
            while not ((seen := queue.query(name)) and seen.state == "ended"):
                if seen:
                    answered = time.monotonic()
                if seen and seen.state_text != shown:
                    print_note(shown := seen.state_text)
                if time.monotonic() - answered > _NO_ANSWER_S:
                    raise InfrastructureError(f"job {name}: no status for {_NO_ANSWER_S:g} s")
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        subprocess.run(queue.cancel_command(name), check=False, capture_output=True)
        raise
    return seen
