"""Fixtures that many tests use, marks by folder, and which files go to one worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from distbench.cli import main
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from support import fork_servers
from support.browser_pages import browser, see
from support.runs import Distbench, Finished, call, run_in
from support.stored_runs import read_once
from support.strategy_matrix import READERS, SUITES

pytest_plugins = [
    "pytester",
    "support.cgroup_files",
    "support.fault_table",
    "support.shell_jobs",
    "support.network_nodes",
    "support.gpu_checks",
]

# what an example takes depends on what else the machine does
# the same examples each time, so that what turns red is the change and not the draw; hostile.py draws others
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")

# plug-ins of whoever runs the tests are no part of them
os.environ.pop(PLUGIN_PATH_VARIABLE, None)

# fixtures are found where they stand in a conftest
__all__ = ["browser", "read_once", "see"]

INTEGRATION = Path(__file__).parent / "integration"


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
    """Mark what trains and what looks at a page; refuse what no environment, or more than one, would run."""
    for item in items:
        if INTEGRATION in item.path.parents:
            item.add_marker("train")
        names = getattr(item, "fixturenames", ())
        if "browser" in names:
            item.add_marker("page")
        if item.get_closest_marker("deep") and not item.get_closest_marker("train"):
            raise pytest.UsageError(f"{item.nodeid}: tests marked deep must also be marked train")
        if "matrix" in names and item.path.name not in READERS:
            raise pytest.UsageError(
                f"{item.nodeid}: uses the fixture matrix; add its file to READERS in "
                "tests/support/strategy_matrix.py"
            )


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
    """End the fork servers of the session."""
    fork_servers.close()
