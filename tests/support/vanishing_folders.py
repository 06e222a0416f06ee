"""A folder that goes away while a command reads, at each of its accesses to that folder.

Python reports each opened file and listed folder to audit hooks before it happens. At the given number of
such events inside a folder, the folder is renamed, so the access that was reported finds nothing: as if
another process had renamed it between a listing and that access. A hook can't be removed, so each command
has a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EVENTS = ("open", "os.listdir", "os.scandir")


@dataclass(frozen=True)
class Reading:
    """A command from whose sight a folder went away at an access to it."""

    access: int
    code: int
    output: str
    errors: str
    has_vanished: bool
    """False if the command made fewer accesses."""


def read_with_vanishing_folder(
    source: Path, folder: str, words: Sequence[str], scratch: Path, step: int = 1
) -> list[Reading]:
    """Run the command *words* on copies of *source*, whose *folder* vanishes at an access to it.

    That is the first access, the one *step* accesses later, and so on, until the command makes no more.

    Args:
        words: ``SOURCE`` stands for the copy.
        scratch: Folder for the copies.
    """
    asked = json.dumps([str(source), folder, list(words), str(scratch), step])
    done = subprocess.run(
        [sys.executable, "-m", "support.vanishing_folders", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
    )
    return [Reading(**each) for each in map(json.loads, done.stdout.splitlines())]


def _run(words: Sequence[str], victim: Path, access: int, scratch: Path) -> None:
    """Run a command in this process, which then ends."""
    from distbench.cli import main

    left, beside = [access], scratch / "gone"

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if not left[0] or event not in _EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        place = os.fspath(arguments[0])
        if isinstance(place, str) and f"{place}/".startswith(f"{victim}/"):
            left[0] -= 1
            if not left[0]:
                victim.rename(beside)

    with (scratch / "out").open("w") as out, (scratch / "errors").open("w") as errors:
        sys.stdout, sys.stderr = out, errors
        sys.addaudithook(see)
        try:
            code = main(words)
        except BaseException:
            traceback.print_exc()
            code = 70
    os._exit(code)


def _readings(source: str, folder: str, words: list[str], scratch: str, step: int) -> None:
    import distbench.cli.commands.runs
    import distbench.query
    import distbench.report.page
    import distbench.views.base  # noqa: F401

    access, has_vanished, place = 1 - step, True, Path(scratch)
    while has_vanished:
        access += step
        shutil.rmtree(place, ignore_errors=True)
        copy = place / "copy"
        shutil.copytree(source, copy)
        if not (child := os.fork()):
            _run([word.replace("SOURCE", str(copy)) for word in words], copy / folder, access, place)
        _, status = os.waitpid(child, 0)
        has_vanished = (place / "gone").exists()
        output, errors = ((place / name).read_text() for name in ("out", "errors"))
        reading = Reading(access, os.waitstatus_to_exitcode(status), output, errors, has_vanished)
        sys.stdout.write(f"{json.dumps(vars(reading))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _readings(*json.loads(sys.argv[1]))
