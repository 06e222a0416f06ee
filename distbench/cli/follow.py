"""Follow a run of another process: an engine job, or a command in another terminal."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from distbench.api.progress import ProgressDisplay, progress_display
from distbench.cli.output import print_note, print_text
from distbench.cli.queue_submission import launcher_queue
from distbench.core.errors import EXIT_INTERRUPTED, EXIT_TIME_LIMIT, InfrastructureError, UsageError
from distbench.launchers.base import JobQueue, QueuedJob
from distbench.record import lock, submission
from distbench.record.progress import ProgressEvent, ProgressLogReader
from distbench.record.run_folder import SUBMISSION_FOLDER, Run, resume_command
from distbench.record.submission import SubmittedJob
from distbench.system import files

_POLL_S = 0.5
_NFS_DELAY_S = 3.0
"""Seconds after which writes of another node are visible through a network file system."""
_NFS_MAX_DELAY_S = 60.0
"""Maximum delay in seconds of the writes of a job that ended well (acdirmax of nfs(5))."""
_NO_ANSWER_S = 60.0
_MAX_POLL_S = 15.0
_REPORT_GRACE_S = 30.0
"""Seconds that a report may take; it is written after the last trial, when nobody holds the lock any more."""
_FETCH_S = 3.0
"""Seconds between two copies of a run's folder from where the job has it."""
_MAX_LOG_BYTES = 64 << 20
EXIT_UNKNOWN = 4
"""Exit code if that of the controller is unknown: the machine failed it."""


def follow(run: Run, *, quiet: bool) -> int:
    """Show events of *run* until it ends, and the output of its job; return its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run goes on.
        RecordError: the file that describes its submission is damaged.
    """
    handed = submission.read_submitted_job(run.folder)
    if handed is None:
        return _follow_process(run, quiet=quiet)
    with progress_display(quiet=quiet) as display:
        job = _JobFollower(run.folder, handed, launcher_queue(handed.launcher), display)
        code = job.follow_to_end()
    job.print_logs()
    if job.is_incomplete:
        nodes = f" --nodes {handed.nodes}" if handed.nodes else ""
        again = f"{resume_command(run.folder)} --on {handed.launcher}{nodes}"
        print_note(f"job {handed.job} ended: {job.state_text}; resume with: {again}")
    return code


def detach_text(folder: Path) -> str:
    """Message on how to follow the run in *folder* again."""
    handed, again = (
        submission.read_submitted_job(folder),
        f"follow it with: distbench attach {shlex.quote(str(folder))}",
    )
    if handed is None:
        return f"the run continues; {again}"
    cancel = shlex.join(launcher_queue(handed.launcher).cancel_command(handed.job))
    return f"job {handed.job} continues; {again}; cancel it with: {cancel}"


class _JobFollower:
    """Follows a job from its submission on."""

    def __init__(self, folder: Path, handed: SubmittedJob, queue: JobQueue, display: ProgressDisplay) -> None:
        self._folder, self._handed, self._queue, self._display = folder, handed, queue, display
        self._reader = ProgressLogReader(folder, handed.offset)
        self._code: int | None = None
        self._has_begun = False
        self._job: QueuedJob | None = None
        self._asked = self._fetched = float("-inf")
        self._missing = ""
        self._lost = ""
        self._began = self._answered = time.monotonic()

    @property
    def state_text(self) -> str:
        """State in the words of the engine."""
        return self._job.state_text if self._job else "unknown, because it does not answer"

    @property
    def is_incomplete(self) -> bool:
        """True if the run stopped early."""
        if self._code is None:
            code = self._job_exit_code
            # a command that was refused before it began will be refused again
            return code != 0 and (self._has_begun or code != UsageError.exit_code)
        return self._code in (EXIT_INTERRUPTED, EXIT_TIME_LIMIT)

    def follow_to_end(self) -> int:
        """Show events until the job has ended; return the exit code of its command."""
        self._show(_latest_state(self._reader.read_new()))
        while not self._has_ended():
            time.sleep(_POLL_S)
            self._fetch_new()
            self._show(self._reader.read_new())
        self._fetch_all()
        self._wait_for_last_events(_NFS_MAX_DELAY_S if self._job_exit_code == 0 else _NFS_DELAY_S)
        known = self._job_exit_code if self._code is None else self._code
        # a run that ended well, but is not here, is no success
        return EXIT_UNKNOWN if known is None or (self._missing and not known) else known

    def print_logs(self) -> None:
        """Print the output of the job, and note missing output."""
        output, errors = self._queue.log_files(self._handed.job, self._folder / SUBMISSION_FOLDER)
        printed = [_read_log(file) for file in (errors, output)]
        for text, show in zip(printed, (print_note, print_text), strict=True):
            if text.strip():
                show(text.rstrip("\n"))
        if self._missing:
            print_note(self._missing)
        elif not self._has_begun and not any(printed):
            print_note(
                f"job {self._handed.job} wrote nothing to {self._folder}: if the nodes do not see this "
                "folder, use --out on a shared file system"
            )
        elif self._code is None and self._job_exit_code == 0:
            print_note(
                f"the end of the run is not visible in {self._folder} yet, so the exit code is that of "
                "the job"
            )

    @property
    def _job_exit_code(self) -> int | None:
        """Exit code of the controller as reported by the engine; None: unknown."""
        return self._job.exit_code if self._job else None

    def _fetch_new(self) -> None:
        """Fetch what the run has written, if the engine has its folder elsewhere."""
        now = time.monotonic()
        if self._job and self._job.state == "running" and now - self._fetched >= _FETCH_S:
            self._queue.fetch(self._handed.job, self._folder, has_ended=False)
            self._fetched = time.monotonic()

    def _fetch_all(self) -> None:
        try:
            self._queue.fetch(self._handed.job, self._folder, has_ended=True)
        except InfrastructureError as error:
            self._missing = str(error)
        self._show(self._reader.read_new())

    def _wait_for_last_events(self, seconds: float) -> None:
        """Wait up to *seconds* for the last events of an ended job, which come from another node."""
        if self._code is not None or self._missing:
            return
        end = time.monotonic() + seconds
        self._display.show_waiting(
            f"job {self._handed.job}: {self.state_text}; waiting for the last events of the run"
        )
        while self._code is None and time.monotonic() < end:
            time.sleep(_POLL_S)
            self._show(self._reader.read_new())

    def _show(self, events: list[ProgressEvent]) -> None:
        for event in events:
            self._has_begun = True
            if event.kind in ("began", "ended"):
                # a job that is requeued begins again
                self._code = event.code if event.kind == "ended" else None
            self._display.show(event)

    def _has_ended(self) -> bool:
        """True if the engine reports the end; until then it may requeue the job."""
        now = time.monotonic()
        if now - self._asked >= self._poll_interval():
            self._asked = now
            self._update(self._queue.query(self._handed.job), now)
        is_known = self._code is not None and now - self._answered > _NO_ANSWER_S
        return is_known or (self._job is not None and self._job.state == "ended")

    def _update(self, job: QueuedJob | None, now: float) -> None:
        if job:
            self._job, self._answered = job, now
            if job.lost and job.lost != self._lost:
                self._lost = job.lost
                self._display.show(ProgressEvent("note", f"job {self._handed.job} has lost {job.lost}"))
        elif now - self._answered < _NO_ANSWER_S:
            return
        has_news = job is None or (not self._has_begun and job.state != "ended")
        if self._code is None and has_news:
            words = job.state_text if job else f"{self._handed.launcher} does not answer"
            self._display.show_waiting(f"job {self._handed.job}: {words}")

    def _poll_interval(self) -> float:
        """Seconds between two queries of the engine, which has others to serve."""
        if self._code is not None:
            return 1.0
        # the end is seen in its events; the start, or a refusal, is polled less and less often
        return _MAX_POLL_S if self._has_begun else min(1 + (time.monotonic() - self._began) / 10, _MAX_POLL_S)


def _follow_process(run: Run, *, quiet: bool) -> int:
    """Follow a run of another command; return its exit code."""
    reader, code, end = ProgressLogReader(run.folder), None, float("inf")
    events = _latest_state(reader.read_new())
    with progress_display(quiet=quiet) as display:
        while True:
            for event in events:
                code = event.code if event.kind == "ended" else None
                display.show(event)
            is_over = code is not None or not events
            if is_over and not lock.is_locked(run.folder):
                # a killed process reports nothing
                patience = _REPORT_GRACE_S if code is None and run.info().state == "finished" else 0.0
                end = min(end, time.monotonic() + patience)
            if time.monotonic() > end or (code is not None and end < float("inf")):
                break
            time.sleep(_POLL_S)
            events = reader.read_new()
    state = run.info().state
    how = "" if code is None else f", exit code {code}"
    print_note(f"{state}{how}; see: distbench show {shlex.quote(str(run.folder))}")
    return EXIT_UNKNOWN if code is None else code


def _latest_state(events: list[ProgressEvent]) -> list[ProgressEvent]:
    """The latest events that state progress."""
    begins = [i for i, event in enumerate(events) if event.kind == "began"]
    session = events[begins[-1] :] if begins else []
    begun = [event for event in session if event.kind in ("began", "item_started", "trial_started")]
    ended = [event for event in session if event.kind == "ended"]
    return [*begun[-1:], *ended]


def _read_log(file: Path) -> str:
    try:
        return files.read_bounded(file, _MAX_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
