"""Submitted runs: the request, and the job that runs it.

RUN/suite.yaml            the suite, as it was then
RUN/submitted/
    request.json          overrides and the command; the job makes run.json of it when it begins
    job.json              the last job, and where the events of its sessions begin
    17.sh, 17.out, 17.err the submission, and the output of the job; manifests are in a file .yaml
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from distbench.core.serialization import decode
from distbench.record import read_json
from distbench.record.run_folder import SUBMISSION_FOLDER, write_json
from distbench.suite import Overrides


@dataclass(frozen=True)
class RunRequest:
    """The request behind a submitted run, made on another machine than the one where it begins."""

    run_id: str
    file: str
    """The suite, as it was named; its text is in ``suite.yaml``."""
    command: list[str]
    set: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    world_sizes: list[int] | None = None
    device: str | None = None
    jobs: list[str] = field(default_factory=list)

    def overrides(self, launcher_settings: Sequence[str] = ()) -> Overrides:
        """The overrides of the suite, for the machine where it begins.

        Args:
            launcher_settings: Those of the launcher, in the place of the requested ones.
        """
        others = [each for each in self.set if not each.startswith(("launcher.", "launcher="))]
        settings = [*others, *launcher_settings] if launcher_settings else self.set
        return Overrides(settings, self.only, self.world_sizes, self.device, self.jobs)


@dataclass(frozen=True)
class SubmittedJob:
    """The job of a submitted run."""

    job: str
    launcher: str
    nodes: int
    offset: int = 0
    """Bytes of the events of earlier sessions."""


def write_submission(folder: Path, content: RunRequest | SubmittedJob) -> None:
    """Write *content* into the run of *folder*.

    Raises:
        InfrastructureError: the disk is full or the folder is not writable.
    """
    write_json(_file(folder, type(content)), asdict(content))


def request_file(request: RunRequest) -> dict[str, str]:
    """Text of the file of *request* by its path in a run's folder, where another machine begins the run."""
    return {str(_file(Path(), RunRequest)): json.dumps(asdict(request)) + "\n"}


def read_request(folder: Path) -> RunRequest | None:
    """Read the request of the run in *folder*; None if it was not submitted.

    Raises:
        RecordError: the file is damaged.
    """
    file = _file(folder, RunRequest)
    return decode(RunRequest, read_json(file), str(file)) if file.is_file() else None


def read_submitted_job(folder: Path) -> SubmittedJob | None:
    """The last job of the run in *folder*; None if there is none.

    Raises:
        RecordError: the file is damaged.
    """
    file = _file(folder, SubmittedJob)
    return decode(SubmittedJob, read_json(file), str(file)) if file.is_file() else None


def _file(folder: Path, of: type) -> Path:
    return folder / SUBMISSION_FOLDER / {RunRequest: "request.json", SubmittedJob: "job.json"}[of]
