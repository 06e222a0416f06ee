"""``distbench check``: what of a run's folder is sound."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from distbench.analysis.text import one_line
from distbench.cli.options import REPORTS, Json, Out, RunName, flag
from distbench.cli.output import columns, say, say_json
from distbench.cli.readers import reads_runs
from distbench.record import runs
from distbench.record.inspection import Inspection, inspect
from distbench.record.setting_aside import set_aside
from distbench.record.store import Run, resume_command
from distbench.units import count_text

_QUIET = ("sound", "unverified")
"""States of files that only ``--json`` lists."""


@reads_runs
def check(
    name: RunName,
    repair: Annotated[
        bool, flag("--repair", text="Set damaged trials aside, so that --resume measures them again.")
    ] = False,
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Say which files of a run are sound, damaged, missing or foreign."""
    run = runs.find(name, out)
    found = inspect(run)
    moved: list[str] = []
    if repair and found.damaged:
        moved, found = _repair(run)
    if as_json:
        files = [dataclasses.asdict(each) for each in found.files]
        damaged = [trial.to_json() for trial in found.damaged]
        say_json({"sound": found.is_sound, "files": files, "damaged": damaged, "set_aside": moved})
    else:
        _print(found, moved, run.folder)
    return 0 if found.is_sound else 1


def _repair(run: Run) -> tuple[list[str], Inspection]:
    """Set the damaged trials of *run* aside; where they are now, and what is left.

    Raises:
        UsageError: another process runs trials in the folder, or a link leads out of it.
        InfrastructureError: the folder is not writable.
    """
    with run.owned():
        # only now nobody changes them any more
        damaged = [trial for trial in inspect(run).damaged if not trial.is_sound]
        moved = [set_aside(run.folder, trial.trial) for trial in damaged]
        found = inspect(run)
        if moved and found.is_readable:
            run.write_info(dataclasses.replace(run.info(), state="interrupted"))
    return [folder.relative_to(run.folder).as_posix() for folder in moved], found


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
    if not found.is_readable:
        suite = shlex.quote(str(folder / "suite.yaml"))
        return [f"Nothing of a run can be read without its run.json; start again: distbench run {suite}"]
    if moved:
        return [f"Measure what was set aside again with: {resume_command(folder)}"]
    if any(not trial.is_sound for trial in found.damaged):
        again = f"distbench check {shlex.quote(str(folder))} --repair"
        return [f"Damaged trials are left out of all numbers. To measure them again, first: {again}"]
    return []
