"""Real runs through the command line, on real processes, in a folder of their own.

The command line runs in the test's process (``call``) or in one of its own (``call_outside``).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.cli import main
from distbench.core.errors import EXIT_INTERRUPTED
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record.record_reader import read_record
from support.suites import SuiteText

MODELS = Path(__file__).parents[1] / "models"
PLUGINS = str(Path(__file__).parents[1] / "plugins")

QUICK = SuiteText("""
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 3, trials: 1}
limits: {step: 30}
world_sizes: [2]
""")
OF_OUR_OWN = ('{user: {model: "small:Small", length: 32}}\ndata: text', "mlp\ndata: synthetic")
"""Replaces the model of a suite: planning with one that nobody has to import takes no process with torch."""


@dataclass(frozen=True)
class Finished:
    """What a ``distbench run`` left."""

    code: int
    errors: str
    cases: dict[str, dict[str, Any]]
    folder: Path
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """How each case went on from each checkpoint."""

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdict of equivalence of each case by its name."""
        return {name: each["equivalence"]["verdict"] for name, each in self.cases.items()}

    @property
    def verdict_by_label(self) -> dict[str, str]:
        """Verdict of equivalence of the only case of each label."""
        return {name.partition("/")[0]: word for name, word in self.verdicts.items()}

    def found(self, planted: str) -> dict[str, str]:
        """Verdict of each mistake that the strategy *planted* makes, whose label is ``planted-mistake``."""
        return {label.removeprefix(f"{planted}-"): word for label, word in self.verdict_by_label.items()}

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


@dataclass(frozen=True)
class Refusal:
    """A command that ran nothing: it has no results, which a loop would find empty."""

    code: int
    errors: str

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing was run (exit code {self.code}), so there is no {name}: {self.errors}")


@dataclass(frozen=True)
class Done:
    """A finished command."""

    returncode: int
    stdout: str
    stderr: str


Distbench = Callable[..., Done]


def call(*arguments: str, folder: Path = MODELS, **variables: str) -> Done:
    """Run the command line in this process, in *folder*; plug-ins of the tests are found, and models there.

    Raises:
        KeyboardInterrupt: Ctrl-C, which the command has taken for itself, was meant for the tests.
    """
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        _environment({PLUGIN_PATH_VARIABLE: _plugin_path(), **variables}),
        _importable(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        code = main(arguments)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return Done(code, out.getvalue(), errors.getvalue())


def call_outside(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, where the models of the tests are found."""
    return subprocess.run(
        [sys.executable, "-m", "distbench", *arguments],
        cwd=MODELS,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def _plugin_path() -> str:
    return os.pathsep.join(filter(None, [os.environ.get(PLUGIN_PATH_VARIABLE), PLUGINS]))


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def run_in(folder: Path, text: str, *arguments: str, **variables: str) -> Finished:
    """Write a suite into *folder*, run it, and return what it left.

    Unless the suite names a launcher, its ranks come from the fork servers of the session.
    """
    suite = folder / "suite.yaml"
    suite.write_text(text if "launcher:" in text else f"{text}\nlauncher: kept\n")
    done = call("run", str(suite), "--out", str(folder / "out"), "--json", *arguments, **variables)
    if not done.stdout.strip():
        # a test that looks at anything but that looks at no run
        refused: Any = Refusal(done.returncode, done.stderr)
        return refused
    shown = json.loads(done.stdout)
    cases = {case["case"]: case for case in shown["cases"]}
    assert cases, f"nothing was planned: {done.stderr}"
    place = Path(shown["report"]).parent
    return Finished(done.returncode, done.stderr, cases, place, shown.get("checkpoints", []))


def record_of(finished: Finished, model: str) -> dict[str, Any]:
    """Return the record of the only trial of *model*, of a run of several."""
    records = [Finished.read(file) for file in finished.folder.glob("trials/*/0/record.json")]
    (record,) = [r for r in records if r["case"]["workload"]["options"]["model"] == model]
    return record
