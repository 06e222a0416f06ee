"""Export a git revision into a folder without changing the repository."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from distbench.core.errors import UsageError


@dataclass(frozen=True)
class GitCheckout:
    """The files of a revision."""

    tree: Path
    root: Path
    """Root of the repository that they come from."""
    title: str


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
    return GitCheckout(tree, root, f"{revision} ({commit[:10]})")


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
        last = (error.stderr.strip().splitlines() or [f"git {words[0]} failed"])[-1]
        raise UsageError(
            f"--baseline {revision}: neither a Python environment (a folder with bin/python, or an "
            f"interpreter) nor a git revision of this repository: {last}"
        ) from error
    return done.stdout.strip()
