"""``distbench check``: verify the files of a run."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import DEFAULT_RUNS_FOLDER, JsonOption, OutOption, RunArgument, flag
from distbench.cli.output import align_columns, print_json, print_note, print_text, print_warning
from distbench.core.errors import RecordError, UsageError
from distbench.core.text import one_line
from distbench.core.units import format_count

if TYPE_CHECKING:
    from distbench.record.run_folder import Run
    from distbench.record.verification import RunCheck

_UNLISTED_STATES = ("sound", "unverified")
"""States of files that only ``--json`` lists."""


@reads_runs
def check(
    name: RunArgument,
    repair: Annotated[
        bool,
        flag(
            "--repair", text="Move damaged trials aside and rebuild run.json, so that --resume can continue."
        ),
    ] = False,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    as_json: JsonOption = False,
) -> int:
    """Verify the files of a run."""
    from distbench.record import catalog
    from distbench.record.verification import verify_run

    run = catalog.find_run(name, out)
    found = verify_run(run)
    moved: list[str] = []
    if repair and not found.is_sound:
        moved, found = _repair(run)
    # records of a run that can't be described are not judged
    contradiction = _contradiction(run) if found.is_readable else ""
    if as_json:
        files = [dataclasses.asdict(each) for each in found.files]
        damaged = [trial.to_json() for trial in found.damaged]
        result = {"sound": found.is_sound and not contradiction, "contradiction": contradiction}
        print_json({**result, "files": files, "damaged": damaged, "set_aside": moved})
    else:
        _print(found, moved, run.folder)
        if contradiction:
            print_text(one_line(contradiction, 600))
    return 0 if found.is_sound and not contradiction else 1


def _contradiction(run: Run) -> str:
    """Reason why the readable trials of *run* can't be judged; empty: they can."""
    from distbench.analysis.run import RunAnalysis
    from distbench.record.record_reader import retry_eagerly, untrusted_records

    try:
        with untrusted_records(f"the records of {run.folder}"):
            retry_eagerly(lambda: RunAnalysis.read(run).cases)
    except RecordError as error:
        return str(error)
    return ""


def _repair(run: Run) -> tuple[list[str], RunCheck]:
    """Quarantine damaged trials of *run* and rewrite ``run.json``; return the new paths and a second check.

    Raises:
        UsageError: another process runs trials in the folder, or a symbolic link leaves it.
        InfrastructureError: the folder is not writable.
    """
    from distbench.record.verification import quarantine_trial, verify_run

    with run.hold_lock():
        # only while the lock is held, nothing changes them
        damaged = [trial for trial in verify_run(run).damaged if not trial.is_other_format]
        moved = [quarantine_trial(run.folder, trial.trial) for trial in damaged]
        found = verify_run(run)
        if found.is_run_file_damaged:
            moved += _rebuild_run_json(run)
            found = verify_run(run)
        elif moved and found.is_readable:
            run.write_info(dataclasses.replace(run.info(), state="interrupted"))
    return [folder.relative_to(run.folder).as_posix() for folder in moved], found


def _rebuild_run_json(run: Run) -> list[Path]:
    """Rewrite ``run.json`` of *run* from its suite and records.

    Returns the new path of the damaged one, if there is any.
    """
    from distbench.record.run_folder import RUN_FILE
    from distbench.record.run_rebuild import rebuild_info
    from distbench.record.verification import quarantine_trial

    try:
        info = rebuild_info(run)
    except UsageError as error:
        print_warning(f"can't rebuild {RUN_FILE}: {one_line(str(error))}")
        return []
    is_there = os.path.lexists(run.folder / RUN_FILE)
    moved = [quarantine_trial(run.folder, RUN_FILE)] if is_there else []
    run.write_info(info)
    print_note(f"rebuilt {RUN_FILE} from suite.yaml and the records; changes from the command line are lost")
    return moved


def _print(found: RunCheck, moved: Sequence[str], folder: Path) -> None:
    shown = [
        (each.state, one_line(f"{each.file}: {each.problem}" if each.problem else each.file))
        for each in found.files
        if each.problem or each.state not in _UNLISTED_STATES
    ]
    for line in align_columns(shown) if shown else ():
        print_text(line)
    counts = Counter(each.state for each in found.files)
    print_text(", ".join(f"{format_count(count, 'file')} {state}" for state, count in counts.items()))
    for place in moved:
        print_text(f"set aside: {place}")
    for line in _advice(found, moved, folder):
        print_text(line)


def _advice(found: RunCheck, moved: Sequence[str], folder: Path) -> list[str]:
    from distbench.record.run_folder import RUN_FILE, resume_command

    again = f"distbench check {shlex.quote(str(folder))} --repair"
    if found.is_run_file_damaged:
        anew = f"or start a new one: distbench run {shlex.quote(str(folder / 'suite.yaml'))}"
        return [f"Without {RUN_FILE} a run can be shown, but not resumed. To rebuild it: {again}; {anew}"]
    if moved:
        return [f"Measure the missing trials with: {resume_command(folder)}"]
    if any(not trial.is_other_format for trial in found.damaged):
        return [f"Damaged trials are excluded from all numbers. To measure them again, first run: {again}"]
    return []
