"""Submit runs to a job engine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from distbench.cli.output import print_note
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.errors import DistbenchError, InfrastructureError, UsageError
from distbench.launchers.base import ControllerCommand, JobQueue, Launcher, Submission
from distbench.record import progress
from distbench.record import submission as submitted
from distbench.record.run_folder import (
    RUN_FILE,
    SUBMISSION_FOLDER,
    Run,
    folder_stamp,
    new_run_id,
    utc_now,
    write_text,
)
from distbench.record.submission import RunRequest, SubmittedJob
from distbench.suite import Overrides, Suite, parse_suite_text
from distbench.suite.yaml_reader import read_suite_text
from distbench.system.files import slug

_CANNOT_FOLLOW = (
    "a run there can't be followed from here; use distbench launch, or start distbench on that machine"
)


def to_arguments(overrides: Overrides) -> list[str]:
    """Options of a command for *overrides* without a launcher."""
    sizes = ",".join(map(str, overrides.world_sizes or ()))
    pairs = [
        ("--world-sizes", sizes),
        ("--device", overrides.device),
        *(("--set", setting) for setting in overrides.set),
        *(("--only", glob) for glob in overrides.only),
    ]
    given = [word for name, value in pairs if value for word in (name, value)]
    return [*given, *(f"--{job}" for job in overrides.jobs)]


RUN_PLACEHOLDER = "RUN"
"""Placeholder for the folder and the ID of a run, which it gets when it starts."""


def planned_submission(
    suite: Suite, out: Path, nodes: int | None, overrides: Overrides, command: Sequence[str]
) -> Submission:
    """Build the submission of a run of *suite* below *out* that has no ID yet.

    Raises:
        UsageError: as of ``make_submission``.
    """
    request = _run_request(RUN_PLACEHOLDER, suite, overrides, command)
    return run_submission(suite, (out / RUN_PLACEHOLDER).resolve(), nodes, request)


def run_submission(
    suite: Suite, folder: Path, nodes: int | None, request: RunRequest | None, flags: Sequence[str] = ()
) -> Submission:
    """Build the submission that starts or resumes *suite* in *folder*, an absolute path.

    Args:
        request: The request behind a run that has yet to begin; None: it is resumed.
        flags: Further flags of ``distbench run``.

    Raises:
        UsageError: as of ``make_submission``.
    """
    arguments = ["run", "--resume", str(folder), "--quiet", *flags]
    files = {"suite.yaml": suite.text, **submitted.request_file(request)} if request else {}
    return make_submission(suite, arguments, nodes, files, folder=folder)


def make_submission(
    suite: Suite,
    arguments: Sequence[str],
    nodes: int | None,
    files: Mapping[str, str],
    *,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
) -> Submission:
    """Build the submission of ``distbench`` with *arguments* on *nodes*, to the launcher of *suite*.

    Args:
        files: Texts of the files that it begins with, by name in *folder*.
        folder: Folder that *arguments* name, with the logs of the job; None: they name a suite.
        overrides: Options that turn the file of the suite into *suite*.

    Raises:
        UsageError: it takes no runs, or not this one.
    """
    name = suite.launcher.name
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    controller = ControllerCommand(
        arguments,
        _requested_nodes(suite, nodes),
        suite.name,
        log_folder=folder / SUBMISSION_FOLDER if folder else None,
        folder=folder,
        files=files,
        overrides=overrides,
    )
    submission = launcher.submission(controller)
    if submission is None:
        raise UsageError(
            f"--on {name}: this launcher can't submit runs; start distbench on a machine where it can "
            "launch them"
        )
    return submission


def _requested_nodes(suite: Suite, nodes: int | None) -> int:
    """Number of nodes to request from the launcher of *suite*.

    Raises:
        UsageError: it is not given.
    """
    wanted = (
        registry.create_plugin("launchers", suite.launcher).default_node_count() if nodes is None else nodes
    )
    if wanted is None or (nodes is not None and nodes < 1):
        given = "is missing" if wanted is None else f"= {wanted}: must be at least 1"
        raise UsageError(f"--on {suite.launcher.name}: --nodes {given}; set the number of nodes to request")
    return int(wanted)


def submit(submission: Submission, queue: JobQueue | None = None) -> str:
    """Submit *submission* to its engine; return the output.

    Args:
        queue: Removes what the engine has accepted of a submission that it refuses.

    Raises:
        InfrastructureError: the engine refuses, or its command is not installed.
    """
    program = submission.engine or submission.command[0]
    try:
        done = subprocess.run(
            submission.command, input=submission.text, capture_output=True, text=True, check=False
        )
    except OSError as error:
        advice = f"install {program} or use a machine that has it, or --print to get the submission"
        raise InfrastructureError(f"{program}: can't be started: {error.strerror}", advice) from error
    if done.returncode:
        if queue:
            _remove_partial_job(queue, done.stdout)
        message = " ".join(done.stderr.split()) or f"exited with code {done.returncode}"
        # a process of our own between here and the engine names the remedy itself
        advice = "" if submission.engine else "distbench launch SUITE --on LAUNCHER --print shows what it got"
        raise InfrastructureError(f"{program} refused: {message}", advice)
    return done.stdout


def submit_job(submission: Submission, queue: JobQueue) -> str:
    """Submit *submission* to the engine of *queue*; return the name of its job there.

    Raises:
        InfrastructureError: as of ``submit``, or the engine names no job.
    """
    printed = submit(submission, queue)
    try:
        return queue.parse_job_name(printed)
    except ValueError as error:
        raise InfrastructureError(str(error), "the job may still run: check the queue") from error


def _remove_partial_job(queue: JobQueue, printed: str) -> None:
    with suppress(ValueError):
        subprocess.run(queue.cancel_command(queue.parse_job_name(printed)), capture_output=True, check=False)


def to_shell(submission: Submission) -> str:
    """*submission* as a command to be pasted into a shell."""
    return f"{shlex.join(submission.command)} <<'END'\n{submission.text.rstrip()}\nEND"


def launcher_queue(launcher: str, remedy: str = _CANNOT_FOLLOW) -> JobQueue:
    """Queue of *launcher*, by which its jobs can be followed.

    Args:
        launcher: Name of the launcher.
        remedy: Advice where it has none.

    Raises:
        UsageError: it has none.
    """
    queue: JobQueue | None = registry.create_plugin("launchers", PluginChoice(launcher)).job_queue()
    if queue is None:
        raise UsageError(f"--on {launcher}: {remedy}")
    return queue


def submit_run(
    suite: Suite,
    out: Path,
    nodes: int | None,
    overrides: Overrides,
    command: Sequence[str],
    flags: Sequence[str],
) -> Run:
    """Submit a new run of *suite*.

    Args:
        out: Folder that holds the runs.
        overrides: Those of the suite, for the job that begins it.
        command: The command line, to be recorded.
        flags: Further flags of ``distbench run``.

    Raises:
        UsageError: it can't be submitted, or no folder can be created.
        InfrastructureError: the engine refuses; nothing is left of the run.
    """
    request = _run_request(new_run_id(), suite, overrides, command)
    folder = out.resolve() / f"{slug(suite.name)}-{folder_stamp(utc_now())}-{request.run_id}"
    submission = run_submission(suite, folder, nodes, request, flags)
    with _new_run_folder(folder, out):
        write_text(folder / "suite.yaml", suite.text)
        submitted.write_submission(folder, request)
        return _submit_and_record(suite, folder, submission, nodes)


def _run_request(run_id: str, suite: Suite, overrides: Overrides, command: Sequence[str]) -> RunRequest:
    return RunRequest(
        run_id=run_id,
        file=suite.file,
        command=list(command),
        set=list(overrides.set),
        only=list(overrides.only),
        world_sizes=list(overrides.world_sizes) if overrides.world_sizes is not None else None,
        device=overrides.device,
        jobs=list(overrides.jobs),
    )


def resubmit_run(run: Run, on: str, nodes: int | None, settings: Sequence[str], flags: Sequence[str]) -> Run:
    """Submit *run* to *on* once more, for what is missing.

    Args:
        settings: Overrides of the launcher's options, as of ``--set``.

    Raises:
        UsageError: it can't be submitted, or is running.
        InfrastructureError: the engine refuses.
    """
    if others := [each for each in settings if not each.startswith("launcher.")]:
        raise UsageError(f"--resume --on {on}: only launcher.* can be changed, not {others[0]}")
    _check_last_job(run)
    request = submitted.read_request(run.folder)
    asked = request.set if request else []
    file = run.folder / "suite.yaml"
    # other overrides don't matter to the engine
    named = request.file if request else str(file)
    suite = parse_suite_text(
        read_suite_text(file), Overrides([*asked, *settings], launcher=on), file=named, is_stored=True
    )
    folder = run.folder.resolve()
    has_begun = (folder / RUN_FILE).exists()
    submission = run_submission(suite, folder, nodes, None if has_begun else request, flags)
    (folder / SUBMISSION_FOLDER).mkdir(exist_ok=True)
    return _submit_and_record(suite, folder, submission, nodes)


def _check_last_job(run: Run) -> None:
    """Check that the last job of *run* has ended, and fetch what it has left.

    Raises:
        UsageError: it goes on.
    """
    last = submitted.read_submitted_job(run.folder)
    if last is None:
        return
    queue = launcher_queue(last.launcher)
    job = queue.query(last.job)
    if job and job.state != "ended":
        raise UsageError(
            f"{run.folder}: already submitted as job {last.job} ({job.state_text}); follow it with: "
            f"distbench attach {shlex.quote(str(run.folder))}"
        )
    if job:
        # most often, its follower has done so
        with suppress(InfrastructureError):
            queue.fetch(last.job, run.folder, has_ended=True)


@contextmanager
def _new_run_folder(folder: Path, out: Path) -> Iterator[None]:
    """Create the folder of a run; remove it again if the run does not begin."""
    try:
        (folder / SUBMISSION_FOLDER).mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"--out {out}: can't create a folder for the run: {error.strerror}; choose another folder"
        ) from error
    try:
        yield
    except DistbenchError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _submit_and_record(suite: Suite, folder: Path, submission: Submission, nodes: int | None) -> Run:
    queue, offset = launcher_queue(suite.launcher.name), progress.log_size(folder)
    job = submit_job(submission, queue)
    submitted.write_submission(
        folder, SubmittedJob(job, suite.launcher.name, _requested_nodes(suite, nodes), offset)
    )
    output, _ = queue.log_files(job, folder / SUBMISSION_FOLDER)
    text = submission.text.replace(submission.secret, "...") if submission.secret else submission.text
    write_text(output.with_suffix(".sh" if text.startswith("#!") else ".yaml"), text)
    print_note(f"submitted job {job} to {suite.launcher.name}; run folder: {folder}")
    return Run(folder)
