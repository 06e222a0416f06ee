"""Launches of shell commands in the place of ranks, so that tests of launchers need no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.ipc.build_files import BuildItem, write_items
from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.base import RunningLaunch


def launch_of(folder: Path, command: str, processes: int = 1, **options: object) -> LaunchSpec:
    """Launch of processes each of which runs *command*."""
    folder.mkdir(exist_ok=True)
    file = folder / "prepare.json"
    write_items(file, [BuildItem("metric", "chore", {"name": "chore", "options": {"command": command}})])
    return LaunchSpec("prepare", file, processes, **options)  # type: ignore[arg-type]


CHORE = """
import subprocess
from dataclasses import dataclass
from distbench.metrics.base import Metric

@dataclass(frozen=True)
class Chore(Metric):
    columns = ()
    command: str = ":"

    def prepare(self):
        subprocess.run(self.command, shell=True, check=True)
"""


@pytest.fixture
def chore(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric that is prepared by a command of the shell; no other test has it."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "metrics").mkdir()
    (folder / "metrics" / "chore.py").write_text(CHORE)
    monkeypatch.setenv(PLUGIN_PATH_VARIABLE, str(folder))


def codes(handle: RunningLaunch) -> list[int]:
    """Wait for the end of what was launched; return its exit codes."""
    end = time.monotonic() + 20
    while not (exits := handle.wait(0.1)):
        assert time.monotonic() < end
    handle.stop()
    return [each.code for each in exits]


def soon(condition: Callable[[], object], why: str, seconds: float = 10) -> float:
    """Wait for *condition*; return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, why
        time.sleep(0.02)
    return time.monotonic() - began


def sleepers(seconds: str) -> list[psutil.Process]:
    """Processes that sleep for *seconds*, a number that nobody else sleeps for."""
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", seconds]]


@pytest.fixture
def nap() -> Iterator[str]:
    """Seconds that no other process of the machine sleeps for."""
    seconds = f"77{os.getpid()}"
    yield seconds
    for left in sleepers(seconds):
        left.kill()
