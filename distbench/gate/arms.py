"""The arms of a gate: what the baseline and the candidate are, and where their trials are started.

Two Python environments (another interpreter, with this very harness put on its path), two revisions
of the code that the suite names (the baseline's checked out beside), or two values of something.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import distbench
from distbench import env
from distbench.errors import UsageError
from distbench.launchers.base import HERE, Place
from distbench.spec import Suite

Kind = Literal["same", "values", "python", "revision"]

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
def opened(kind: Kind, baseline: str, arm: Arm, folder: Path) -> Iterator[Arm]:
    """Yield *arm* as the baseline: moved into an environment, or to a revision, of the name *baseline*.

    Args:
        folder: Where a revision is checked out, and what leads an interpreter to this harness; what is
            made there is taken away again.

    Raises:
        UsageError: there is no such revision or environment, or it lacks what trials need.
    """
    if kind == "python":
        yield _in_environment(baseline, arm, folder)
    elif kind == "revision":
        with _checked_out(baseline, folder) as (place, told):
            yield Arm(told, arm.suite, _with(arm.place, place), arm.machine)
    else:
        yield arm


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


@contextmanager
def _checked_out(revision: str, folder: Path) -> Iterator[tuple[Place, str]]:
    """Yield where code of *revision* is started, and what it is called; the checkout ends with it.

    Raises:
        UsageError: this is no git repository, or it has no such revision.
    """
    here = Path.cwd()
    root = Path(_git(revision, "rev-parse", "--show-toplevel"))
    commit = _git(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    tree = folder / "worktree"
    _git(revision, "worktree", "add", "--detach", "--force", str(tree), commit)
    try:
        moved = {"PYTHONPATH": _moved(os.environ.get("PYTHONPATH", ""), root, tree)}
        place = Place(folder=str(tree / here.resolve().relative_to(root)), environment=moved)
        if not Path(place.folder or "").is_dir():
            raise UsageError(f"--baseline {revision}: has no folder {here.resolve().relative_to(root)}")
        yield place, f"{revision} ({commit[:10]})"
    finally:
        _git(revision, "worktree", "remove", "--force", str(tree))


def _moved(paths: str, root: Path, tree: Path) -> str:
    """Return a search path with what lies in the repository taken from the checkout."""
    parts = []
    for part in filter(None, paths.split(os.pathsep)):
        path = Path(part).resolve()
        parts.append(str(tree / path.relative_to(root)) if path.is_relative_to(root) else str(path))
    return os.pathsep.join(parts)


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
