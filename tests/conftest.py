"""Real runs through the command line, on real processes, in a folder of their own.

The command line runs in the test's process (``call``) or in one of its own (``call_outside``).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import keeping
import pytest
from matrix import READERS, SUITES
from pages import browser, see
from xdist.scheduler import LoadScopeScheduling

from distbench.cli import main
from distbench.core.errors import EXIT_INTERRUPTED
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.record.record_reader import read_record

pytest_plugins = ["pytester", "drills", "chores", "bench", "gpu_checks"]

# what an example takes depends on what else the machine does
# the same examples each time, so that what turns red is the change and not the draw; hostile.py draws others
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")

# plug-ins of whoever runs the tests are no part of them
os.environ.pop(PLUGIN_PATH_VARIABLE, None)

# fixtures are found where they stand in a conftest
__all__ = ["browser", "see"]

MODELS = Path(__file__).parent / "models"
PLUGINS = str(Path(__file__).parent / "plugins")

QUICK = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 3, trials: 1}
limits: {step: 30}
world_sizes: [2]
"""
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

    def found(self, planted: str) -> dict[str, str]:
        """Verdict of each mistake that the strategy *planted* makes, whose label is ``planted-mistake``."""
        return {name.split("/")[0].removeprefix(f"{planted}-"): word for name, word in self.verdicts.items()}

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


def call(*arguments: str, **variables: str) -> Done:
    """Run the command line in this process, where the models and plug-ins of the tests are found.

    Raises:
        KeyboardInterrupt: Ctrl-C, which the command has taken for itself, was meant for the tests.
    """
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(MODELS),
        _environment({PLUGIN_PATH_VARIABLE: _plugin_path(), **variables}),
        _importable(MODELS),
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

    Unless the suite names a launcher, its ranks come from the warm parents of the session.
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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; return exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def distbench() -> Distbench:
    """Run the command line in this process."""
    return call


@pytest.fixture
def run_suite(tmp_path: Path) -> Callable[..., Finished]:
    """Write a suite, run it, and return what it left."""
    return functools.partial(run_in, tmp_path)


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Run of all strategies in one precision, made when first asked for; it is read and never changed."""

    @functools.cache
    def made(precision: str) -> Finished:
        return run_in(tmp_path_factory.mktemp(f"matrix-{precision}"), SUITES[precision])

    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what looks at a page; refuse what no environment, or more than one, would run."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "browser" in names:
            item.add_marker("page")
        if item.get_closest_marker("deep") and not item.get_closest_marker("train"):
            raise pytest.UsageError(f"{item.nodeid}: marked deep, but not train")
        if "matrix" in names and item.path.name not in READERS:
            raise pytest.UsageError(f"{item.nodeid}: reads the matrix, but is not in matrix.READERS")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With ``--dist loadfile``, give all files that read the matrix to one worker."""
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


class _Together(LoadScopeScheduling):
    """What a file makes for its tests is made once, and so is the matrix."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::")[0]).name
        return "matrix" if file in READERS else file


def pytest_sessionfinish() -> None:
    """End the warm parents of the session."""
    keeping.close()
