"""Real runs through the command line, on real processes, in a folder of their own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pages import browser, see

from distbench.store import read_record

pytest_plugins = ["pytester"]

# fixtures are found where they stand in a conftest
__all__ = ["browser", "see"]

MODELS = Path(__file__).parent / "models"

QUICK = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 3, trials: 1}
limits: {step: 30}
world_sizes: [2]
"""


@dataclass(frozen=True)
class Finished:
    """What a ``distbench run`` left."""

    code: int
    errors: str
    cases: dict[str, dict[str, Any]]
    folder: Path
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """How each case went on from each checkpoint."""

    def record(self, label: str) -> dict[str, Any]:
        """Return the first record of the case whose name begins with *label*."""
        (file,) = self.folder.glob(f"trials/{label}-*/0/record.json")
        return self.read(file)

    @staticmethod
    def read(file: Path) -> dict[str, Any]:
        """Return the record in *file*, with the samples and tables beside it."""
        stored = read_record(file).record
        content = {"samples": dict(stored.samples), "tables": dict(stored.tables)}
        return {**json.loads(file.read_text()), **content}


Distbench = Callable[..., subprocess.CompletedProcess[str]]


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where the models of the tests can be imported."""
    return subprocess.run(
        [sys.executable, "-m", "distbench", *arguments],
        cwd=MODELS,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def run_in(folder: Path, text: str, *arguments: str, **variables: str) -> Finished:
    """Write a suite into *folder*, run it, and return what it left."""
    suite = folder / "suite.yaml"
    suite.write_text(text)
    done = call("run", str(suite), "--out", str(folder / "out"), "--json", *arguments, **variables)
    if not done.stdout.strip():
        return Finished(done.returncode, done.stderr, {}, folder)
    shown = json.loads(done.stdout)
    cases = {case["case"]: case for case in shown["cases"]}
    place = Path(shown["report"]).parent
    return Finished(done.returncode, done.stderr, cases, place, shown.get("checkpoints", []))


@pytest.fixture
def distbench() -> Distbench:
    """Run the command line and return the finished process."""
    return call


@pytest.fixture
def run_suite(tmp_path: Path) -> Callable[..., Finished]:
    """Write a suite, run it, and return what it left."""
    return functools.partial(run_in, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what looks at a page, so that one environment of several need do it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("page")
