"""The arms of a gate: baseline and candidate, and where their trials start.

The arms differ by Python environment (another interpreter, with this harness on its path), by revision of
the code that the suite imports (the baseline is a checkout), or by values in the suite.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from distbench.core import registry
from distbench.core.errors import UsageError
from distbench.core.job import MEASURE
from distbench.ipc.launch_spec import CURRENT_PYTHON, PythonTarget
from distbench.launchers.base import Launcher
from distbench.plan import launcher_machine
from distbench.suite import Suite
from distbench.system.interpreters import find_python, make_python_path
from distbench.system.machine import install_hint, machine_facts, ops_folder

_DESCRIBE_SCRIPT = (
    "import distbench.worker.preload, json; from distbench.system.machine import machine_facts; "
    "print(json.dumps(machine_facts()))"
)
_DESCRIBE_LIMIT_S = 300.0

_OTHER_OWNER = re.compile(r"dubious ownership in repository at '(.*)'")


@dataclass(frozen=True)
class GateArm:
    """Baseline or candidate of a gate."""

    title: str
    """Name for people."""
    suite: Suite
    target: PythonTarget = CURRENT_PYTHON
    machine: Mapping[str, Any] = field(default_factory=machine_facts)
    """Machine and packages, as its interpreter sees them."""
    changed_files: tuple[PurePosixPath, ...] | None = None
    """Of a revision: files of the repository that differ here, without the suite; None: it is no revision."""


def baseline_arm(baseline: str, arm: GateArm, folder: Path, load: Callable[[Path], Suite]) -> GateArm:
    """Build the baseline arm: *arm* in the environment called *baseline*, or else at that git revision.

    If the suite file is in the repository, the revision's version of it defines what is trained; how to
    measure is taken from the candidate's, for both arms.

    Args:
        folder: Empty folder for the files of a revision.
        load: Reads the revision's suite, with the overrides of the command line.

    Raises:
        UsageError: no such revision or environment, it is missing packages that trials need, or the launcher
            can't start ranks in it.
        SuiteError: the revision's suite is invalid.
    """
    if python := find_python(Path(baseline)):
        return _environment_arm(python, baseline, arm)
    checkout = check_out(baseline, folder)
    place = checkout_place(baseline, checkout.tree, checkout.root)
    suite = _checkout_suite(arm.suite, checkout.tree, checkout.root, load)
    if suite.to_resolved() == arm.suite.to_resolved() and not _imports_own_code(arm.suite):
        raise UsageError(
            f"--baseline {baseline}: both arms would be the same: the suite has not changed since, "
            "and it imports no code of this repository (workload: user: model: module:callable). "
            "To compare versions of torch or deepspeed, give a Python environment"
        )
    own = Path(arm.suite.file).resolve()
    changed = tuple(file for file in checkout.changed_files if checkout.root / file != own)
    return GateArm(checkout.title, suite, _merge_places(arm.target, place), arm.machine, changed)


def _imports_own_code(suite: Suite) -> bool:
    listed = suite.to_resolved()["workload"]
    return any("user" in workload for workload in (listed if isinstance(listed, list) else [listed]))


def _merge_places(own: PythonTarget, moved: PythonTarget) -> PythonTarget:
    return PythonTarget(moved.python, moved.working_directory, {**moved.environment, **own.environment})


def _environment_arm(python: Path, name: str, arm: GateArm) -> GateArm:
    launcher: Launcher = registry.create_plugin("launchers", arm.suite.launcher)
    if not launcher.supports_environments:
        raise UsageError(
            f"--baseline {name}: launcher {arm.suite.launcher.name} starts ranks with the Python of its "
            "nodes, so both arms would be the same; use launcher: local, or give a git revision"
        )
    # the same harness in both arms, whatever version the other environment has
    place = PythonTarget(str(python), None, {"PYTHONPATH": make_python_path()})
    machine = _describe_environment(python, place, name)
    # strategies name the folder of this interpreter, in which the arms would rebuild each other's ops
    prefix, device = str(python.parent.parent), launcher_machine(arm.suite).device
    ops = str(ops_folder(prefix, machine.get("packages", {}), device))
    place = replace(place, environment={**place.environment, "TORCH_EXTENSIONS_DIR": ops})
    return GateArm(name, arm.suite, _merge_places(arm.target, place), machine)


def _describe_environment(python: Path, place: PythonTarget, name: str) -> dict[str, Any]:
    """Machine and packages, as *python* sees them."""
    environment = {**os.environ, **place.environment}
    try:
        output = subprocess.run(
            [python, "-c", _DESCRIBE_SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_DESCRIBE_LIMIT_S,
            check=True,
        ).stdout
        return dict(json.loads(output.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(
            f"--baseline {name}: its Python can't run trials: {last}; install what they need "
            f"{install_hint('train', f'{python} -m pip')}"
        ) from error
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--baseline {name}: its Python could not be started: {error}") from error


def _checkout_suite(suite: Suite, tree: Path, root: Path, load: Callable[[Path], Suite]) -> Suite:
    """Suite in the checkout *tree* of the repository *root*; *suite* itself if its file is elsewhere."""
    file = Path(suite.file).resolve()
    there = tree / file.relative_to(root) if file.is_relative_to(root) else None
    if there is None or not there.is_file():
        return suite
    own = {name: getattr(suite, name) for name in ("name", "limits", "launcher", "metrics", "gate")}
    return replace(load(there), **own).with_job(MEASURE, suite.measure)


def checkout_place(revision: str, tree: Path, root: Path) -> PythonTarget:
    """Working directory and module search path, moved into the checkout *tree* of *root*."""
    inside = Path.cwd().resolve().relative_to(root)
    if not (tree / inside).is_dir():
        raise UsageError(f"--baseline {revision}: folder {inside} does not exist in that revision")
    paths = []
    for path in (Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part):
        paths.append(str(tree / path.relative_to(root)) if path.is_relative_to(root) else str(path))
    return PythonTarget(
        working_directory=str(tree / inside), environment={"PYTHONPATH": os.pathsep.join(paths)}
    )


@dataclass(frozen=True)
class GitCheckout:
    """The files of a revision."""

    tree: Path
    root: Path
    """Root of the repository that they come from."""
    title: str
    changed_files: tuple[PurePosixPath, ...]
    """Files that differ from those in the repository, also new ones that git does not ignore."""


def check_out(revision: str, folder: Path) -> GitCheckout:
    """Write the files of *revision* of the repository here into *folder*.

    No worktree is registered: whatever ends this process, the repository is unchanged. So the files are in no
    repository, and hooks don't run.

    Raises:
        UsageError: git is not installed, or has no such revision.
    """
    root = Path(_git(revision, "rev-parse", "--show-toplevel"))
    commit = commit_of(revision)
    tree = folder / "tree"
    tree.mkdir()
    # an index of its own, so that the user's stays unchanged
    index = {"GIT_INDEX_FILE": str(folder / "index")}
    options = ("--reset", "-u", "--no-sparse-checkout", "--no-recurse-submodules")
    _git(revision, f"--work-tree={tree}", "read-tree", *options, commit, **index)
    listings = (
        _git(revision, "-C", str(root), *words, "-z")
        for words in (
            ("diff", "--name-only", "--no-renames", "--no-ext-diff", commit),
            ("ls-files", "--others", "--exclude-standard"),
        )
    )
    names = [name for listing in listings for name in listing.split("\0") if name]
    return GitCheckout(tree, root, f"{revision} ({commit[:10]})", tuple(map(PurePosixPath, names)))


def commit_of(revision: str) -> str:
    """Full hash of *revision* of the repository here.

    Raises:
        UsageError: git is not installed, or has no such revision.
    """
    return _git(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")


def _git(revision: str, *words: str, **variables: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], env={**os.environ, **variables}, capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise UsageError(f"--baseline {revision}: git is not installed") from error
    except subprocess.CalledProcessError as error:
        raise UsageError(f"--baseline {revision}: {_git_failure(error.stderr)}") from error
    return done.stdout.strip()


def _git_failure(stderr: str) -> str:
    """Explain the failure of git with *stderr*, and name the remedy."""
    if owned := _OTHER_OWNER.search(stderr):
        return (
            "another user owns this repository, so git refuses to read it; if you trust it: "
            f"git config --global --add safe.directory {owned[1]}"
        )
    last = (stderr.strip().splitlines() or ["git failed"])[-1].removeprefix("fatal: ")
    reason = (
        "neither a Python environment (a folder with bin/python, or an interpreter) nor a git revision of "
        f"this repository: {last}"
    )
    if last.startswith("not a git repository"):
        return reason
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() == "true":
        remedy = "git fetch --unshallow, or fetch-depth: 0 of actions/checkout"
        return f"{reason}; this clone is shallow, so it lacks older commits and other branches: {remedy}"
    return f"{reason}; git branch --all and git tag list them; git fetch brings those of a remote"
