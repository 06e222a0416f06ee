"""The pytest plugin: the cases of a suite as tests, and runs of suites for the user's own tests.

pytest imports this module at every start if distbench is installed, so it imports only pytest; the rest is
imported once there is a suite. The entry point has the name of the module, so that pytest recognises both
as one plugin, and ``-p distbench.pytest_plugin`` registers nothing twice.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distbench.pytest_plugin.fixture import RunFactory
    from distbench.pytest_plugin.items import SuiteFile
    from distbench.record.run_folder import Run

FINISHED_RUNS: pytest.StashKey[list[Run]] = pytest.StashKey()
"""Runs of the collected suites, in the order in which they ended."""

_SUITE_SUFFIXES = (".yaml", ".yml")
_SUITE_KEY = re.compile(rb"^[\"']?(workload|batch|strategies)[\"']?\s*:", re.MULTILINE)
_MAX_SNIFFED_BYTES = 1 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options, which mean the same as those of ``distbench run``."""
    add = parser.getgroup("distbench", "distbench: benchmarks of distributed training").addoption
    add("--distbench-set", metavar="KEY=VALUE", action="append", default=[], help="Override a suite field.")
    add(
        "--distbench-only",
        metavar="GLOB",
        action="append",
        default=[],
        help="Only cases whose name or label matches GLOB.",
    )
    add(
        "--distbench-world-sizes",
        metavar="N,N",
        type=_parse_world_sizes,
        default=None,
        help="Numbers of devices.",
    )
    add("--distbench-device", metavar="DEVICE", default=None, help="auto, cpu or cuda.")
    add("--distbench-out", metavar="DIR", type=Path, default=None, help="Folder for runs (reports).")
    add("--distbench-check", action="store_true", help="First check each case against its reference.")
    parser.addini(
        "distbench_suites",
        "Globs of suites to collect from folders (suites/*.yaml); name others on the command line",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of all cases."""
    config.addinivalue_line("markers", "distbench: a case of a suite (distbench sets it)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Collect a suite that the command line or ``distbench_suites`` names."""
    if file_path.suffix not in _SUITE_SUFFIXES:
        return None
    wanted = any(file_path.match(glob) for glob in parent.config.getini("distbench_suites"))
    if not wanted and not (parent.session.isinitpath(file_path) and _looks_like_a_suite(file_path)):
        return None
    from distbench.pytest_plugin.items import SuiteFile

    made: SuiteFile = SuiteFile.from_parent(parent, path=file_path)
    return made


# before pytest-benchmark's, which raises where something has become slower
@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of each run and the path of its report."""
    if runs := config.stash.get(FINISHED_RUNS, []):
        from distbench.pytest_plugin.output import print_runs

        print_runs(terminalreporter, runs)


@pytest.fixture(scope="session")
def distbench_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFactory:
    """Run suites: ``distbench_run("suites/zero.yaml", only=["ddp"])`` returns the finished run."""
    from distbench.pytest_plugin.fixture import RunFactory

    return RunFactory(request.config, tmp_path_factory)


def _looks_like_a_suite(file: Path) -> bool:
    """True if *file* has two of a suite's three required keys: with one missing, it is an invalid suite.

    A text search also recognises a suite that is not valid YAML, so that the mistake is reported.
    """
    # opening a pipe would block until there is a writer
    if not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_SNIFFED_BYTES)
    except OSError:
        return False
    return len(set(_SUITE_KEY.findall(text))) > 1


def _parse_world_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"{text!r}: expected whole numbers, as in 1,2,4")
    return [int(part) for part in parts]
