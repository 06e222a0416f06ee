"""The pytest plugin: the cases of a suite as tests, and runs of suites for tests of one's own.

pytest imports this module whenever it starts where distbench is installed, so it imports nothing but
pytest; the rest comes once there is a suite. Its entry point is named as the module is: pytest then
knows the one by the other, and ``-p distbench.pytest_plugin`` beside it registers nothing twice.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distbench.pytest_plugin.collecting import SuiteFile
    from distbench.pytest_plugin.fixture import Runs
    from distbench.store import Run

FINISHED: pytest.StashKey[list[Run]] = pytest.StashKey()
"""The runs of the suites that were collected, in the order in which they ended."""

_SUFFIXES = (".yaml", ".yml")
_KEY = re.compile(rb"^[\"']?(workload|batch|strategies)[\"']?\s*:", re.MULTILINE)
_LOOKED_AT = 1 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; they mean what those of ``distbench run`` mean."""
    add = parser.getgroup("distbench", "distbench: benchmarks of distributed training").addoption
    add("--distbench-set", metavar="KEY=VALUE", action="append", default=[], help="Change a field of suites.")
    add("--distbench-only", metavar="GLOB", action="append", default=[], help="Keep cases of this name.")
    add("--distbench-world-sizes", metavar="N,N", type=_sizes, default=None, help="Numbers of devices.")
    add("--distbench-device", metavar="DEVICE", default=None, help="auto, cpu or cuda.")
    add("--distbench-out", metavar="DIR", type=Path, default=None, help="Folder of the runs (reports).")
    add("--distbench-check", action="store_true", help="First check that each case is the same training.")
    parser.addini(
        "distbench_suites",
        "Globs of suites to collect from folders (suites/*.yaml); others must be named on the command line",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that every case has."""
    config.addinivalue_line("markers", "distbench: a case of a suite (distbench sets it)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Collect a suite that the command line or ``distbench_suites`` names."""
    if file_path.suffix not in _SUFFIXES:
        return None
    wanted = any(file_path.match(glob) for glob in parent.config.getini("distbench_suites"))
    if not wanted and not (parent.session.isinitpath(file_path) and _looks_like_a_suite(file_path)):
        return None
    from distbench.pytest_plugin.collecting import SuiteFile

    made: SuiteFile = SuiteFile.from_parent(parent, path=file_path)
    return made


# before pytest-benchmark's, which raises where something has become slower
@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of each run, and where its report is."""
    if runs := config.stash.get(FINISHED, []):
        from distbench.pytest_plugin.telling import print_runs

        print_runs(terminalreporter, runs)


@pytest.fixture(scope="session")
def distbench_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run suites: ``distbench_run("suites/zero.yaml", only=["ddp"])`` returns the finished run."""
    from distbench.pytest_plugin.fixture import Runs

    return Runs(request.config, tmp_path_factory)


def _looks_like_a_suite(file: Path) -> bool:
    """Return whether two of a suite's three keys are there: with one of them missing it is a mistaken suite.

    A look at the lines also knows a suite that is no YAML yet, which is to be told.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(_LOOKED_AT)
    except OSError:
        return False
    return len(set(_KEY.findall(text))) > 1


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"{text!r}: expected whole numbers, as in 1,2,4")
    return [int(part) for part in parts]
