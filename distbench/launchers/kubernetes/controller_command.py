"""Command of the controller's container: a new run, or one whose folder is fetched from the pod."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from distbench.launchers.base import ControllerCommand

SUITE_FOLDER, REPORTS_FOLDER = "/suite", "/reports"
"""Folders of the pod: files that the command begins with, and runs unless they have a folder already."""
ARCHIVE = "run.tar.gz"
"""File with what earlier sessions of the run have stored."""
ENDED = re.compile(r"^the run has ended with code (\d+); this pod stays", re.MULTILINE)
"""Last line of a pod that stays."""

_PYTHON = ("python", "-P", "-m", "distbench")
# the last "wait" is interrupted by a signal, which goes to the run, and not to the shell
_STAY_SCRIPT = (
    'trap "kill -TERM \\$!" TERM; "$@"{into} & run=$!; wait $run; code=$?; '
    "while kill -0 $run 2>/dev/null; do wait $run; code=$?; done; {shown}"
    'echo "the run has ended with code $code; this pod stays for $0 seconds"; '
    # a shell that is the first process of a container ignores signals without a trap
    'trap "kill \\$!; exit $code" TERM; sleep $0 & wait $!; exit $code'
)


def mounted_folder(controller: ControllerCommand) -> str:
    """Folder of the pods that holds runs; that of a submitted run is where it is here.

    All paths in its messages then hold here, too.
    """
    return str(controller.folder.parent) if controller.folder else REPORTS_FOLDER


def controller_command(
    controller: ControllerCommand, name: str, launcher: Mapping[str, Any], *, claim: str, keep: int
) -> list[str]:
    """Command of the container.

    Args:
        name: Name of the run in its namespace.
        launcher: Options of the launcher that differ from their defaults.
        claim: Volume with the runs; empty: the pod has the run.
        keep: Seconds for which the pod stays after the run, so that it can be fetched.
    """
    chosen = ["--set", f"launcher={json.dumps({'kubernetes': launcher})}"]
    if controller.folder:
        arguments = [*_without_launcher(controller.arguments), *chosen]
        script = _submitted_script(controller, controller.folder, name, claim)
    else:
        (suite,) = controller.files
        overrides = _without_launcher(controller.overrides)
        arguments = ["run", f"{SUITE_FOLDER}/{suite}", "--out", REPORTS_FOLDER, *overrides, *chosen]
        script = "" if claim or not keep else _STAY_SCRIPT.format(into="", shown="")
    run = [*_PYTHON, *arguments]
    command = ["sh", "-c", script, str(keep), *run] if script else run
    # Kubernetes replaces the name of a variable in brackets by its value
    return [word.replace("$(", "$$(") for word in command]


def _submitted_script(controller: ControllerCommand, folder: Path, name: str, claim: str) -> str:
    """Script that lays the folder of the run, runs it, and waits until it is fetched."""
    logs = shlex.quote(str((controller.log_folder or folder) / name))
    begun, here = " && ".join(_preparation(controller, folder, claim)), shlex.quote(str(folder))
    refused = shlex.quote(f"{folder}: can't be prepared in the pod; see the lines above")
    # in one stream: two may come in any order, and the line about the end has to be the last
    into, shown = f" >>{logs}.out 2>>{logs}.err", f"cat {logs}.out {logs}.err; "
    stay = _STAY_SCRIPT.format(into=into, shown=shown)
    made = f"mkdir -p {shlex.quote(str(controller.log_folder or folder))}"
    return f"{{ {begun} && {made} && test -w {here}; }} || {{ echo {refused} >&2; exit 2; }}; {stay}"


def _preparation(controller: ControllerCommand, folder: Path, claim: str) -> Iterator[str]:
    """Commands after which *folder* has what the run begins with."""
    here = shlex.quote(str(folder))
    if not controller.files and claim:
        missing = shlex.quote(f"{folder.name}: the claim {claim} has no such run; start a new one")
        yield f"{{ test -d {here} || {{ echo {missing} >&2; false; }}; }}"
    elif not controller.files:
        yield f"mkdir -p {here} && tar -xzf {SUITE_FOLDER}/{ARCHIVE} -C {here}"
    for file in controller.files:
        yield f"install -D -m 644 {SUITE_FOLDER}/{config_key(file)} {here}/{file}"


def config_key(file: str) -> str:
    """Key of a ConfigMap for *file* of a run's folder."""
    return PurePosixPath(file).name


def _without_launcher(words: Sequence[str]) -> list[str]:
    """Remove the launcher's options from *words*."""
    left = iter(words)
    kept: list[str] = []
    for word in left:
        setting = next(left) if word == "--set" else None
        if setting is None:
            kept.append(word)
        elif re.split(r"[.=\s]", setting)[0] != "launcher":
            kept += [word, setting]
    return kept
