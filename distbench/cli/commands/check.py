"""``distbench check``: what of a run's folder is sound."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from distbench.cli.options import REPORTS, Json, Out, RunName, flag
from distbench.cli.output import columns, note, say, say_json
from distbench.cli.readers import reads_runs
from distbench.core.errors import UsageError
from distbench.core.text import one_line
from distbench.core.units import count_text
from distbench.record import catalog
from distbench.record.quarantine import set_aside
from distbench.record.rebuilding import rebuilt
from distbench.record.run_folder import RUN_FILE, Run, resume_command
from distbench.record.verification import Inspection, inspect

_QUIET = ("sound", "unverified")
"""States of files that only ``--json`` lists."""


@reads_runs
def check(
    name: RunName,
    repair: Annotated[
        bool,
        flag("--repair", text="Set damaged trials aside, and make run.json again, so that --resume goes on."),
    ] = False,
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Say which files of a run are sound, and which are not."""
    run = catalog.find(name, out)
    found = inspect(run)
    moved: list[str] = []
    if repair and not found.is_sound:
        moved, found = _repair(run)
    if as_json:
        files = [dataclasses.asdict(each) for each in found.files]
        damaged = [trial.to_json() for trial in found.damaged]
        say_json({"sound": found.is_sound, "files": files, "damaged": damaged, "set_aside": moved})
    else:
        _print(found, moved, run.folder)
    return 0 if found.is_sound else 1


def _repair(run: Run) -> tuple[list[str], Inspection]:
    """Set what is damaged of *run* aside, and write ``run.json`` again; where it is now, and what is left.

    Raises:
        UsageError: another process runs trials in the folder, or a link leads out of it.
        InfrastructureError: the folder is not writable.
    """
    with run.owned():
        # only now nobody changes them any more
        damaged = [trial for trial in inspect(run).damaged if not trial.is_sound]
        moved = [set_aside(run.folder, trial.trial) for trial in damaged]
        found = inspect(run)
        if found.is_damaged:
            moved += _described_again(run)
            found = inspect(run)
        elif moved and found.is_readable:
            run.write_info(dataclasses.replace(run.info(), state="interrupted"))
    return [folder.relative_to(run.folder).as_posix() for folder in moved], found


def _described_again(run: Run) -> list[Path]:
    """Write ``run.json`` of *run* again, from its suite and records; where the damaged one is now, if any."""
    try:
        info = rebuilt(run)
    except UsageError as error:
        note(f"distbench: warning: {RUN_FILE} can't be made again: {one_line(str(error))}")
        return []
    is_there = os.path.lexists(run.folder / RUN_FILE)
    moved = [set_aside(run.folder, RUN_FILE)] if is_there else []
    run.write_info(info)
    note(
        f"{RUN_FILE} is made again from suite.yaml and the records; what the command line had changed is lost"
    )
    return moved


def _print(found: Inspection, moved: Sequence[str], folder: Path) -> None:
    shown = [
        (each.state, one_line(f"{each.file}: {each.problem}" if each.problem else each.file))
        for each in found.files
        if each.problem or each.state not in _QUIET
    ]
    for line in columns(shown) if shown else ():
        say(line)
    counts = Counter(each.state for each in found.files)
    say(", ".join(f"{count_text(count, 'file')} {state}" for state, count in counts.items()))
    for place in moved:
        say(f"set aside: {place}")
    for line in _advice(found, moved, folder):
        say(line)


def _advice(found: Inspection, moved: Sequence[str], folder: Path) -> list[str]:
    again = f"distbench check {shlex.quote(str(folder))} --repair"
    if found.is_damaged:
        anew = f"or start a new one: distbench run {shlex.quote(str(folder / 'suite.yaml'))}"
        return [f"Without {RUN_FILE} a run is shown, but can't be resumed. To make it again: {again}; {anew}"]
    if moved:
        return [f"Measure what is missing with: {resume_command(folder)}"]
    if any(not trial.is_sound for trial in found.damaged):
        return [f"Damaged trials are left out of all numbers. To measure them again, first: {again}"]
    return []
