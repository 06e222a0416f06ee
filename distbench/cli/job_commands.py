"""Short commands that a job of an engine does, while this one waits for what it prints."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from distbench.cli.output import note, say
from distbench.cli.queue_submission import accepted, queue_of, submission_of
from distbench.core.errors import InfrastructureError
from distbench.launchers.base import Job, Queue
from distbench.record.run_folder import storing
from distbench.run.control import interruptible
from distbench.suite import Suite

_NO_JOBS = "this launcher takes no jobs; run distbench doctor on that machine"
_LOOK_S = 1.0
_UNANSWERED_S = 60.0


def elsewhere(suite: Suite, out: Path, nodes: int | None, words: Sequence[str]) -> int:
    """Have ``distbench doctor`` with *words* examine what the launcher of *suite* gives it; its exit code.

    Args:
        out: Folder of runs, which the nodes see: what is handed over and printed is in it meanwhile.

    Raises:
        UsageError: the launcher takes no jobs, or can't be asked about them.
        InfrastructureError: the engine refuses, or does not answer.
        KeyboardInterrupt: Ctrl-C; the job is cancelled.
    """
    queue = queue_of(suite.launcher.name, _NO_JOBS)
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=".doctor-", dir=out.resolve()))
    try:
        file = folder / "suite.yaml"
        file.write_text(suite.text)
        arguments = ["doctor", str(file), "--out", str(out.resolve()), *words]
        job = accepted(submission_of(suite, arguments, nodes, [], folder), queue)
        note(f"handed over to {suite.launcher.name}: job {job}; Ctrl-C cancels it")
        ended = _awaited(queue, job)
        texts = [_text(log) for log in queue.logs(job, folder)]
        for text, show in zip(texts, (say, note), strict=True):
            if text:
                show(text)
        if ended.code is None or not any(texts):
            # a job that is cancelled while it waits ends with 0
            raise InfrastructureError(f"job {job} has examined nothing: {ended.words}")
        return ended.code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _text(log: Path) -> str:
    return log.read_text(errors="replace").rstrip() if log.is_file() else ""


def _awaited(queue: Queue, name: str) -> Job:
    """Job *name*, once it has ended."""
    told, answered = "", time.monotonic()
    try:
        with interruptible():
            while not ((seen := queue.job(name)) and seen.state == "ended"):
                if seen:
                    answered = time.monotonic()
                if seen and seen.words != told:
                    note(told := seen.words)
                if time.monotonic() - answered > _UNANSWERED_S:
                    raise InfrastructureError(f"job {name}: no answer about it for {_UNANSWERED_S:g} s")
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        subprocess.run(queue.cancel_command(name), check=False, capture_output=True)
        raise
    return seen
