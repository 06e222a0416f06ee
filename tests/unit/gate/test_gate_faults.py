"""A gate that is killed leaves the user's repository as it was, and nothing behind for good."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.gate.arms import GateArm, baseline_arm
from distbench.strategies.zero import Zero
from distbench.suite import load_suite
from distbench.system.machine import package_versions
from distbench.system.temporary import temporary_folder
from support.pretended_suites import pretended_suite
from support.repositories import git
from support.runs import PLUGINS
from support.suites import write_suite

SUITE = pretended_suite(
    measure="{steps: 3}",
    limits="{start: 600}",
    strategies="[{pretended: {does: hangs}}]",
    gate="{efficiency: false}",
)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository whose suite has changed since its only commit, and a folder for temporary files."""
    monkeypatch.setenv(PLUGIN_PATH_VARIABLE, PLUGINS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    folder = tmp_path / "repository"
    folder.mkdir()
    suite = write_suite(folder, SUITE)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "It trains")
    suite.write_text(SUITE.replace("hangs", "[hangs, works]"))
    return folder


def gate(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = ["-m", "distbench", "gate", "suite.yaml", "--baseline", "main", "--out", "../out", "--json"]
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hanging_trial_start(folder: Path, gated: subprocess.Popen[str], before: int = 0) -> int:
    """When the trial of a gate was launched that never ends, later than *before*, in nanoseconds."""
    while True:
        for file in folder.glob("out/gate-*/*/trials/*/*/trial.json"):
            # a trial that is repeated takes the files of the earlier one away first
            with contextlib.suppress(FileNotFoundError):
                if (since := file.stat().st_mtime_ns) > before:
                    return since
        assert gated.poll() is None, gated.communicate()
        time.sleep(0.05)


@pytest.mark.drill("gate: kill -9, then --resume")
def test_a_killed_gate_leaves_the_repository_as_it_was(repository, drill):
    folder = repository.parent

    def state() -> list[str | Path]:
        listed = git(repository, "worktree", "list"), git(repository, "status", "--short")
        return [*listed, *sorted((repository / ".git").rglob("*"))]

    before = state()
    killed = gate(repository)
    since = hanging_trial_start(folder, killed)
    killed.kill()
    killed.communicate()
    assert state() == before
    (path,) = (folder / "out").iterdir()
    resumed = gate(repository, "--resume", str(path))
    hanging_trial_start(folder, resumed, since)
    resumed.send_signal(signal.SIGINT)
    _, errors = resumed.communicate()
    assert resumed.returncode == 130, errors
    assert f"--resume {path}" in errors
    assert state() == before
    assert list((folder / "tmp").iterdir()) == [], "what the first could not remove, the second did"
    drill.seen("nothing in the repository or in the folder of temporary files")


def test_a_temporary_folder_in_use_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / ".distbench-tmp-somewhat-else"
    other.mkdir()
    with temporary_folder() as first:
        with temporary_folder() as second:
            assert first.is_dir() and second != first
        assert {path.name for path in tmp_path.iterdir()} == {first.name, other.name}
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(
    ("revision", "path", "told"),
    [
        pytest.param("main", "", "git is not installed", marks=pytest.mark.drill("gate: no git")),
        pytest.param(
            "--upload-pack=touch mine",
            os.environ["PATH"],
            "nor a git revision of this repository",
            marks=pytest.mark.drill("gate: a revision that would be an option of git"),
        ),
    ],
)
def test_a_baseline_that_is_no_revision_is_refused(repository, monkeypatch, drill, revision, path, told):
    monkeypatch.setenv("PATH", path)
    refused = gate(repository, "--baseline", revision)
    _, errors = refused.communicate()
    drill.seen(errors)
    assert (refused.returncode, told in errors) == (2, True)
    assert not (repository / "mine").exists()


def test_a_shallow_clone_is_refused_with_the_remedy(repository, tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "commit", "--allow-empty", "-qm", "later"], cwd=repository, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", repository.as_uri(), clone], check=True)
    refused = gate(clone, "--baseline", "HEAD~1")
    _, errors = refused.communicate()
    told = "this clone is shallow, so it lacks older commits and other branches: git fetch --unshallow"
    assert (refused.returncode, told in errors) == (2, True), errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to another user")
def test_a_repository_of_another_user_is_refused_with_the_remedy(repository):
    for path in (repository, repository / ".git"):
        os.chown(path, 65534, 65534)
    refused = gate(repository, "--baseline", "HEAD")
    _, errors = refused.communicate()
    told = f"git config --global --add safe.directory {repository}"
    assert (refused.returncode, told in errors) == (2, True), errors


def test_another_environment_has_a_folder_of_its_own_for_ops(tmp_path):
    file = write_suite(
        tmp_path, SUITE.replace("{pretended: {does: hangs}}", "ddp").replace("pretend\n", "local\n")
    )
    arm = GateArm("the suite", load_suite(file))
    folders = {Zero().extensions_folder("cpu")}
    for name in ("old", "new"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho '{json.dumps({'packages': package_versions()})}'\n")
        python.chmod(0o755)
        there = baseline_arm(str(tmp_path / name), arm, tmp_path / name, load_suite)
        folders.add(there.target.environment["TORCH_EXTENSIONS_DIR"])
    assert len(folders) == 3, folders
