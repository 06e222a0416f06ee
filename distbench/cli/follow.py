"""Following a run that another process does: a job of an engine, or a command in another terminal."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from distbench.cli.display import Display, displayed
from distbench.cli.output import note, say
from distbench.cli.queue_submission import queue_of
from distbench.core.errors import INTERRUPTED, OUT_OF_TIME, UsageError
from distbench.launchers.base import Job, Queue
from distbench.record import lock, submission
from distbench.record.progress import Event, Reader
from distbench.record.run_folder import SUBMITTED, Run, resume_command
from distbench.record.submission import Handed
from distbench.system import files

_LOOK_S = 0.5
_LATE_S = 3.0
"""After so many seconds what was written on another node is seen through a network file system."""
_SEEN_S = 60.0
"""What a job has written that ended well is seen after so many seconds at the latest (acdirmax of nfs(5))."""
_UNANSWERED_S = 60.0
_PAUSE_S = 15.0
_REPORT_S = 30.0
"""A report may take so long, and is written after the last trial, when nobody owns the folder any more."""
_MOST_LOG = 64 << 20
_GONE = 4
"""Exit code where nobody knows that of the controller: the machine failed it."""


def follow(run: Run, *, quiet: bool) -> int:
    """Show what happens in *run* until it ends, and what its job has printed; its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run goes on.
        RecordError: what says how it was handed over is damaged.
    """
    handed = submission.read_job(run.folder)
    if handed is None:
        return _of_a_command(run, quiet=quiet)
    with displayed(quiet=quiet) as display:
        job = _Job(run.folder, handed, queue_of(handed.launcher), display)
        code = job.until_end()
    job.print_logs()
    if job.needs_more:
        again = f"{resume_command(run.folder)} --on {handed.launcher} --nodes {handed.nodes}"
        note(f"job {handed.job} ended: {job.words}; resume with: {again}")
    return code


def going_on(folder: Path) -> str:
    """What is said to whoever stops following the run in *folder*."""
    handed, again = (
        submission.read_job(folder),
        f"follow it with: distbench attach {shlex.quote(str(folder))}",
    )
    if handed is None:
        return f"the run goes on; {again}"
    cancel = shlex.join(queue_of(handed.launcher).cancel_command(handed.job))
    return f"job {handed.job} goes on; {again}; cancel it with: {cancel}"


class _Job:
    """Follows a job from when it was handed over."""

    def __init__(self, folder: Path, handed: Handed, queue: Queue, display: Display) -> None:
        self._folder, self._handed, self._queue, self._display = folder, handed, queue, display
        self._reader = Reader(folder, handed.offset)
        self._code: int | None = None
        self._has_begun = False
        self._job: Job | None = None
        self._asked = float("-inf")
        self._began = self._answered = time.monotonic()

    @property
    def words(self) -> str:
        """The end, in the words of the engine."""
        return self._job.words if self._job else "unknown, as it does not answer"

    @property
    def needs_more(self) -> bool:
        """Whether the run has ended before its end."""
        if self._code is None:
            told = self._told
            # what was refused before it began will be refused again
            return told != 0 and (self._has_begun or told != UsageError.exit_code)
        return self._code in (INTERRUPTED, OUT_OF_TIME)

    def until_end(self) -> int:
        """Show what happens until the job has ended; the exit code of its command."""
        self._show(_last(self._reader.news()))
        while not self._is_over():
            time.sleep(_LOOK_S)
            self._show(self._reader.news())
        self._await_end(_SEEN_S if self._told == 0 else _LATE_S)
        codes = (self._code, self._told, _GONE)
        return next(code for code in codes if code is not None)

    def print_logs(self) -> None:
        """Print what the job has printed, and what is missing."""
        output, errors = self._queue.logs(self._handed.job, self._folder / SUBMITTED)
        printed = [_text(file) for file in (errors, output)]
        for text, show in zip(printed, (note, say), strict=True):
            if text.strip():
                show(text.rstrip("\n"))
        if not self._has_begun and not any(printed):
            note(
                f"nothing of job {self._handed.job} is in {self._folder}: if nodes don't see this folder, "
                "use --out on a file system that they share"
            )
        elif self._code is None and self._told == 0:
            note(f"the end of the run is not seen in {self._folder} yet: the exit code is that of the job")

    @property
    def _told(self) -> int | None:
        """Exit code of the controller as the engine tells it; None: it does not."""
        return self._job.code if self._job else None

    def _await_end(self, seconds: float) -> None:
        """Wait up to *seconds* for the last events of a job that has ended, which come from another node."""
        end = time.monotonic() + seconds
        if self._code is None:
            self._display.waiting(f"job {self._handed.job}: {self.words}; waiting for the last of its run")
        while self._code is None and time.monotonic() < end:
            time.sleep(_LOOK_S)
            self._show(self._reader.news())

    def _show(self, events: list[Event]) -> None:
        for event in events:
            self._has_begun = True
            if event.kind in ("began", "ended"):
                # a job that is requeued begins again
                self._code = event.code if event.kind == "ended" else None
            self._display.show(event)

    def _is_over(self) -> bool:
        """Whether the engine says so; until then it may requeue the job."""
        now = time.monotonic()
        if now - self._asked >= self._pause():
            self._asked = now
            self._take(self._queue.job(self._handed.job), now)
        is_known = self._code is not None and now - self._answered > _UNANSWERED_S
        return is_known or (self._job is not None and self._job.state == "ended")

    def _take(self, job: Job | None, now: float) -> None:
        if job:
            self._job, self._answered = job, now
        elif now - self._answered < _UNANSWERED_S:
            return
        has_news = job is None or (not self._has_begun and job.state != "ended")
        if self._code is None and has_news:
            words = job.words if job else f"{self._handed.launcher} does not answer"
            self._display.waiting(f"job {self._handed.job}: {words}")

    def _pause(self) -> float:
        """Seconds between two questions to the engine, which has others to serve."""
        if self._code is not None:
            return 1.0
        # its end is seen in what it writes; that it has begun, or won't, is awaited more and more patiently
        return _PAUSE_S if self._has_begun else min(1 + (time.monotonic() - self._began) / 10, _PAUSE_S)


def _of_a_command(run: Run, *, quiet: bool) -> int:
    """Follow a run that a command does elsewhere; how it ended."""
    reader, code, end = Reader(run.folder), None, float("inf")
    events = _last(reader.news())
    with displayed(quiet=quiet) as display:
        while True:
            for event in events:
                code = event.code if event.kind == "ended" else None
                display.show(event)
            is_over = code is not None or not events
            if is_over and not lock.is_owned(run.folder):
                # who was killed reports nothing
                patience = _REPORT_S if code is None and run.info().state == "finished" else 0.0
                end = min(end, time.monotonic() + patience)
            if time.monotonic() > end or (code is not None and end < float("inf")):
                break
            time.sleep(_LOOK_S)
            events = reader.news()
    state = run.info().state
    how = "" if code is None else f", exit code {code}"
    note(f"{state}{how}; see: distbench show {shlex.quote(str(run.folder))}")
    return _GONE if code is None else code


def _last(events: list[Event]) -> list[Event]:
    """Of what was shown to others, that which says how far it is."""
    begins = [i for i, event in enumerate(events) if event.kind == "began"]
    session = events[begins[-1] :] if begins else []
    begun = [event for event in session if event.kind in ("began", "item_started", "trial_started")]
    ended = [event for event in session if event.kind == "ended"]
    return [*begun[-1:], *ended]


def _text(file: Path) -> str:
    try:
        return files.content(file, _MOST_LOG).decode(errors="replace")
    except OSError:
        return ""
