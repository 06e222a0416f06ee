"""The arms of a gate: what the baseline and the candidate are, and where their trials are started.

Two Python environments (another interpreter, with this very harness put on its path), two revisions
of the code that the suite names (the baseline's checked out beside), or two values of something.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import distbench
from distbench import env
from distbench.errors import UsageError
from distbench.launchers.base import HERE, Place
from distbench.spec import Suite

Kind = Literal["python", "revision"]

_TOLD = "import distbench.worker.warm, distbench.env, json; print(json.dumps(distbench.env.describe()))"
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class Arm:
    """One of the two that are held against each other."""

    told: str
    """What it is, for people."""
    suite: Suite
    place: Place = HERE
    machine: Mapping[str, Any] = field(default_factory=env.describe)
    """What its interpreter tells of the machine and the packages."""


def kind_of(baseline: str) -> Kind:
    """Return what ``--baseline`` names: an interpreter or virtual environment, else a git revision."""
    return "python" if _python_of(baseline) else "revision"


@contextmanager
def opened(kind: Kind, baseline: str, arm: Arm, folder: Path, load: Callable[[Path], Suite]) -> Iterator[Arm]:
    """Yield *arm* as the baseline: moved into an environment, or to a revision, of the name *baseline*.

    A suite that lies in the repository is that of the revision too, as far as it says what is trained;
    how it is measured is the candidate's to say, for both alike.

    Args:
        folder: Where a revision is checked out, and what leads an interpreter to this harness; what is
            made there is taken away again.
        load: Reads the suite of a revision, with what the command line changes in it.

    Raises:
        UsageError: there is no such revision or environment, or it lacks what trials need.
        SuiteError: the revision's suite is wrong.
    """
    if kind == "python":
        yield _in_environment(baseline, arm, folder)
    else:
        with _checked_out(baseline, folder) as (tree, root, told):
            place = _moved(baseline, tree, root)
            suite = _suite_there(arm.suite, tree, root, load)
            if suite.resolved() == arm.suite.resolved() and "user" not in arm.suite.work["workload"]:
                raise UsageError(
                    f"--baseline {baseline}: both arms would be the same: the suite has not changed since, "
                    "and it names no code of this repository (workload: user: model: module:callable). "
                    "Another torch or deepspeed: give a Python environment"
                )
            yield Arm(told, suite, _with(arm.place, place), arm.machine)


def _with(own: Place, moved: Place) -> Place:
    return Place(moved.python, moved.folder, {**moved.environment, **own.environment})


def _python_of(name: str) -> Path | None:
    path = Path(name)
    inside = path / "bin" / "python"
    if inside.is_file():
        return inside.absolute()
    return path.absolute() if path.is_file() and os.access(path, os.X_OK) else None


def _in_environment(name: str, arm: Arm, folder: Path) -> Arm:
    python = _python_of(name)
    assert python is not None, "kind_of has looked"
    # the same harness in both arms, whatever version the other environment has, and nothing else of ours
    harness = folder / "harness"
    harness.mkdir(parents=True, exist_ok=True)
    link = harness / "distbench"
    if not link.exists():
        link.symlink_to(Path(distbench.__file__).parent, target_is_directory=True)
    paths = os.pathsep.join([str(harness), *filter(None, [os.environ.get("PYTHONPATH")])])
    place = Place(str(python), None, {"PYTHONPATH": paths})
    return Arm(name, arm.suite, _with(arm.place, place), _asked(python, place, name))


def _asked(python: Path, place: Place, name: str) -> dict[str, Any]:
    """Return what *python* tells of its packages.

    Raises:
        UsageError: it can't import what trials need.
    """
    environment = {**os.environ, **place.environment}
    try:
        told = subprocess.run(
            [python, "-c", _TOLD],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        return dict(json.loads(told.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(
            f"--baseline {name}: its Python can't run trials: {last}; install there what they need: "
            f"{python} -m pip install 'distbench[train]'"
        ) from error
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--baseline {name}: its Python does not answer: {error}") from error


def _suite_there(suite: Suite, tree: Path, root: Path, load: Callable[[Path], Suite]) -> Suite:
    """Return the suite of a checkout *tree* of the repository *root*; *suite* itself if it lies elsewhere."""
    file = Path(suite.file).resolve()
    there = tree / file.relative_to(root) if file.is_relative_to(root) else None
    if there is None or not there.is_file():
        return suite
    how = {name: getattr(suite, name) for name in ("measure", "limits", "launcher", "metrics", "gate")}
    return replace(load(there), name=suite.name, **how)


def _moved(revision: str, tree: Path, root: Path) -> Place:
    """Return the working directory, and the search path, as they are in a checkout *tree* of *root*."""
    inside = Path.cwd().resolve().relative_to(root)
    if not (tree / inside).is_dir():
        raise UsageError(f"--baseline {revision}: has no folder {inside}")
    paths = []
    for path in (Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part):
        paths.append(str(tree / path.relative_to(root)) if path.is_relative_to(root) else str(path))
    return Place(folder=str(tree / inside), environment={"PYTHONPATH": os.pathsep.join(paths)})


@contextmanager
def _checked_out(revision: str, folder: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield a checkout of *revision*, the root of the repository, and what the revision is called.

    Raises:
        UsageError: this is no git repository, or it has no such revision.
    """
    root = Path(_git(revision, "rev-parse", "--show-toplevel"))
    commit = _git(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    tree = folder / "worktree"
    _git(revision, "worktree", "add", "--detach", "--force", str(tree), commit)
    try:
        yield tree, root, f"{revision} ({commit[:10]})"
    finally:
        _git(revision, "worktree", "remove", "--force", str(tree))


def _git(revision: str, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UsageError(f"--baseline {revision}: git is not installed") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"git {words[0]} failed"])[-1]
        raise UsageError(
            f"--baseline {revision}: neither a Python environment (a folder with bin/python, or an "
            f"interpreter) nor a git revision of this repository: {last}"
        ) from error
    return done.stdout.strip()
