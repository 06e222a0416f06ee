"""Verify the files of a run, and quarantine damaged trials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from distbench.core.errors import RecordError, RecordFormatError, UsageError
from distbench.core.job import job_kinds
from distbench.core.serialization import decode
from distbench.record import Record, check_format, data_files, read_json
from distbench.record.lock import LOCK_FILE
from distbench.record.progress import PROGRESS_FILE
from distbench.record.record_reader import RECORD_FILE, DamagedTrial
from distbench.record.run_folder import RUN_FILE, SUBMISSION_FOLDER, Run
from distbench.system.files import folders, infrastructure_errors

FileState = Literal["sound", "damaged", "missing", "foreign", "unverified"]

QUARANTINE_FOLDER = "damaged"
"""Folder for quarantined trials, in the run's folder."""
_TRIAL_FILE = "trial.json"
_OPTIONAL_FILES = {
    "suite.yaml": "no number depends on it: run.json contains the resolved suite",
    "report.html": "distbench report creates it",
}
# other entries of a run's folder; no number depends on them
_KNOWN_NAMES = {*_OPTIONAL_FILES, LOCK_FILE, "README.md", "prepare", "scratch", QUARANTINE_FOLDER}
_KNOWN_NAMES |= {
    "answer.json",
    "report-lite.html",
    PROGRESS_FILE,
    SUBMISSION_FOLDER,
    "tensorboard",
    "mlflow",
    "wandb",
    "pytest-benchmark",
}
_TRIAL_FILE_PREFIXES = (_TRIAL_FILE, "rank", "node", "agents.log", "warm_parent.log", f".{RECORD_FILE}.")
"""Prefixes of the names of files that a trial leaves next to its record."""


@dataclass(frozen=True)
class FileCheck:
    """A file or folder in a run's folder, or a file that should be there."""

    file: str
    """Its path in the folder."""
    state: FileState
    """``unverified``: no number depends on it, and its content can't be checked."""
    problem: str = ""
    """Description of the damage, or of what it may be; empty if there is nothing to say."""


@dataclass(frozen=True)
class RunCheck:
    """All files of a run's folder."""

    files: list[FileCheck]
    damaged: list[DamagedTrial]
    """Trials that can't be read."""
    is_readable: bool
    """True if ``run.json`` can be read: without it a run is shown, but not resumed."""

    @property
    def is_run_file_damaged(self) -> bool:
        """True if ``run.json`` is damaged; a file of another version of distbench is not."""
        return any(each.file == RUN_FILE and each.state in ("damaged", "missing") for each in self.files)

    @property
    def is_sound(self) -> bool:
        """True if everything that the run has stored can be read; it may be incomplete."""
        return self.is_readable and not self.damaged


def verify_run(run: Run) -> RunCheck:
    """Read all files of *run*, down to the last sample; a trial that disappears meanwhile is left out.

    Raises:
        UsageError: this is not the folder of a run.
    """
    info, found, damaged = _check_run_file(run), [], []
    for folder in _trial_folders(run.folder):
        of_trial = list(_check_trial(folder))
        if not folder.is_dir():
            continue
        name = folder.relative_to(run.folder).as_posix()
        found += [FileCheck(f"{name}/{each.file}", each.state, each.problem) for each in of_trial]
        if unreadable := [each for each in of_trial if _is_unreadable(each)]:
            first = unreadable[0]
            is_sound = all(each.state == "unverified" for each in unreadable)
            damaged.append(DamagedTrial(name, f"{name}/{first.file}: {first.problem}", is_sound))
    return RunCheck(
        [info, *_check_other_files(run.folder), *found], damaged, is_readable=info.state == "sound"
    )


def _is_unreadable(found: FileCheck) -> bool:
    """True if a file of a trial makes it unreadable; a trial that has not ended has nothing to read."""
    has_not_ended = found.file == RECORD_FILE and found.state == "missing"
    return bool(found.problem) and not has_not_ended


def _check_run_file(run: Run) -> FileCheck:
    try:
        run.info()
    except RecordFormatError as error:
        return FileCheck(RUN_FILE, "unverified", _without_path(error, run.folder / RUN_FILE))
    except RecordError as error:
        return FileCheck(RUN_FILE, "damaged", _without_path(error, run.folder / RUN_FILE))
    return FileCheck(RUN_FILE, "sound")


def _check_other_files(root: Path) -> Iterator[FileCheck]:
    """Check the other entries of a run's folder and of its cases' folders."""
    of_kinds = {kind.folder for kind in job_kinds()}
    for name, problem in _OPTIONAL_FILES.items():
        if not os.path.lexists(root / name):
            yield FileCheck(name, "missing", problem)
    for entry in map(root.joinpath, _entry_names(root)):
        if entry.name in of_kinds:
            for folder in (entry, *folders(entry)):
                places = (folder / name for name in _entry_names(folder))
                yield from (_foreign(root, place) for place in places if not place.is_dir())
        elif entry.name in _KNOWN_NAMES:
            yield FileCheck(entry.name, "unverified")
        elif entry.name != RUN_FILE:
            yield _foreign(root, entry)


def _foreign(root: Path, entry: Path) -> FileCheck:
    return FileCheck(entry.relative_to(root).as_posix(), "foreign")


def _trial_folders(root: Path) -> Iterator[Path]:
    for kind in job_kinds():
        for case in folders(root / kind.folder):
            yield from folders(case)


def _entry_names(folder: Path) -> list[str]:
    """Names in *folder*, sorted; none if it disappears meanwhile."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(entry.name for entry in folder.iterdir())
    return []


def _check_trial(folder: Path) -> Iterator[FileCheck]:
    """Check the record of a trial, the files that it names, and the other files."""
    record, present = folder / RECORD_FILE, set(_entry_names(folder))
    found = list(_check_record(record)) if RECORD_FILE in present else []
    if not found and _TRIAL_FILE in present:
        found = [FileCheck(RECORD_FILE, "missing", "the trial has not ended")]
    yield from found
    named = {each.file: each.state for each in found}
    # only a readable record says which files are its own
    is_known = named.get(RECORD_FILE) == "sound"
    for name in sorted(present - named.keys()):
        is_ours = name.startswith(_TRIAL_FILE_PREFIXES) or (name.endswith(".parquet") and not is_known)
        yield FileCheck(name, "unverified" if is_ours else "foreign")


def _check_record(file: Path) -> Iterator[FileCheck]:
    """Check a record and the files that it names."""
    try:
        data = read_json(file)
        check_format(data, str(file))
        # read without the content of its files, so that any error is one of the record
        Record.from_json({**data, "samples": {}, "tables": {}}, str(file))
        parts = list(_named_files(data))
    except RecordFormatError as error:
        yield FileCheck(RECORD_FILE, "unverified", _without_path(error, file))
        return
    except (RecordError, KeyError, TypeError, AttributeError) as error:
        yield FileCheck(RECORD_FILE, "damaged", _without_path(error, file))
        return
    yield FileCheck(RECORD_FILE, "sound")
    yield from (_check_data_file(file, name, part) for name, part in parts)


def _named_files(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each file that a record names, and the record reduced to that file."""
    samples = data["samples"]
    if samples and "file" in samples:
        yield str(samples["file"]), {**data, "tables": {}}
    for name, entry in data["tables"].items():
        if isinstance(entry, dict) and entry["file"]:
            yield str(entry["file"]), {**data, "samples": None, "tables": {name: entry}}


def _check_data_file(record: Path, name: str, data: dict[str, Any]) -> FileCheck:
    folder = record.parent
    try:
        described = decode(data_files.FileManifest, data, str(record))
        for content in data_files.lazy_content(data_files.locate_files(folder, described), described):
            dict(content)
    except RecordError as error:
        is_there = os.path.lexists(folder / name)
        return FileCheck(name, "damaged" if is_there else "missing", _without_path(error, folder / name))
    return FileCheck(name, "sound")


def _without_path(error: Exception, file: Path) -> str:
    """Message of *error* without the path of *file*, with which it begins."""
    return str(error).removeprefix(f"{file}: ")


def quarantine_trial(run: Path, trial: str) -> Path:
    """Move the folder *trial* of *run* into its folder ``damaged``; return the new path.

    It can then be measured again; nothing is deleted.

    Raises:
        UsageError: because of a symbolic link, files outside of the run would be moved.
        InfrastructureError: it can't be moved.
    """
    root, folder, into = run.resolve(), run / trial, run / QUARANTINE_FOLDER
    if folder.resolve() != root / trial or into.resolve() != root / QUARANTINE_FOLDER:
        raise UsageError(f"{folder}: leaves the run's folder through a symbolic link; remove the link")
    name = trial.replace("/", "-")
    with infrastructure_errors(into):
        into.mkdir(exist_ok=True)
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        moved = next(into / free for free in names if not (into / free).exists())
        folder.rename(moved)
    return moved
