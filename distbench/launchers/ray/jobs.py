"""Jobs of a Ray cluster: the script of a controller, and what has become of it."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from distbench.core.errors import UsageError
from distbench.core.text import one_line
from distbench.launchers.base import ControllerCommand, JobQueue, QueuedJob, Submission
from distbench.launchers.nodes import forwarded_environment
from distbench.system.files import slug

NODES_VARIABLE = "DISTBENCH_RAY_NODES"
"""Environment variable of a job: number of nodes that its submission asks for; 0: all that are alive."""
_PROCESS = (sys.executable, "-P", "-m", "distbench.launchers.ray.dashboard")
# Ray kills what has not ended 3 s after SIGTERM; a run that is stopped writes its report
_STOP_VARIABLES = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
_ANSWER_TIMEOUT_S = 60.0
_NAME = re.compile(r"([\w.+-]+)@(https?://[^\s@]+)")


class RayQueue(JobQueue):
    """Jobs that the dashboard of a cluster has taken: ``ID@http://HEAD:8265``."""

    def parse_job_name(self, printed: str) -> str:
        # a site's Python may print other lines as well
        for word in reversed(printed.split()):
            if _NAME.fullmatch(word):
                return word
        raise ValueError(f"Ray named no job: {printed!r}")

    def query(self, name: str) -> QueuedJob | None:
        split_job_name(name)
        command = [*_PROCESS, "status", name]
        try:
            asked = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_ANSWER_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return _parse_job(json.loads(asked.stdout)) if asked.returncode == 0 else None

    def cancel_command(self, name: str) -> list[str]:
        split_job_name(name)
        return [*_PROCESS, "stop", name]

    def log_files(self, name: str, folder: Path) -> tuple[Path, Path]:
        number, _ = split_job_name(name)
        return _log_files(number, folder)


def split_job_name(name: str) -> tuple[str, str]:
    """Ray's ID of job *name*, and the URL of the dashboard.

    Raises:
        UsageError: *name* is not a job name of Ray.
    """
    found = _NAME.fullmatch(name)
    if not found:
        raise UsageError(f"{name!r}: not a Ray job, such as ID@http://HEAD:8265")
    number, url = found.groups()
    return number, url


def job_submission(address: str, controller: ControllerCommand) -> Submission:
    """Submission of *controller* to the cluster at *address*, as of ``Ray.address``."""
    number = f"distbench-{slug(controller.name)}-{secrets.token_hex(4)}"
    job = {"submission_id": number, "runtime_env": {"env_vars": _STOP_VARIABLES}}
    request = json.dumps({"address": address, "job": job})
    return Submission((*_PROCESS, "submit", request), _script(number, controller), engine="Ray")


def _script(number: str, controller: ControllerCommand) -> str:
    """Script of job *number*, which becomes *controller* on a node of the cluster."""
    variables = {**forwarded_environment(), NODES_VARIABLE: str(controller.nodes)}
    command = [controller.target.python, "-P", "-m", "distbench", *controller.arguments]
    start = f"exec {shlex.join(command)}"
    if controller.log_folder:
        output, errors = (shlex.quote(str(file)) for file in _log_files(number, controller.log_folder))
        start += f" > {output} 2> {errors}"
    return "\n".join(
        [
            "#!/bin/sh",
            "set -e",
            f"cd {shlex.quote(str(controller.target.working_directory or Path.cwd()))}",
            *(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())),
            start,
            "",
        ]
    )


def _log_files(number: str, folder: Path) -> tuple[Path, Path]:
    return folder / f"{number}.out", folder / f"{number}.err"


def _parse_job(answer: dict[str, Any] | None) -> QueuedJob:
    """Parse a job as Ray describes it; None: Ray does not know it."""
    if answer is None:
        return QueuedJob("ended", "no longer known to Ray")
    word, code = one_line(str(answer.get("status"))), answer.get("driver_exit_code")
    state: Literal["waiting", "running", "ended"] = (
        "waiting" if word == "PENDING" else "running" if word == "RUNNING" else "ended"
    )
    # of a job that runs, and of a script that failed, the message repeats the state
    has_reason = state == "waiting" or (word == "FAILED" and code is None)
    reason = one_line(str(answer.get("message") or "")) if has_reason else ""
    if not isinstance(code, int):
        code = None
    elif code < 0:
        # as a shell reports a signal
        code = 128 - code
    return QueuedJob(state, f"{word} ({reason})" if reason else word, code)
