"""The options of the pytest plugin, and the reports of invalid ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distbench.core.errors import DistbenchError
from distbench.core.text import strip_control_characters
from distbench.suite import Overrides

REPORTS = "reports"


def suite_overrides(config: pytest.Config) -> Overrides:
    """Overrides that the options apply to every suite."""
    return Overrides(
        set=config.getoption("distbench_set"),
        only=config.getoption("distbench_only"),
        world_sizes=config.getoption("distbench_world_sizes"),
        device=config.getoption("distbench_device"),
        jobs=["check"] if config.getoption("distbench_check") else [],
    )


def runs_folder(config: pytest.Config) -> Path:
    """Folder for the runs of collected suites."""
    # a test may change the working directory
    return config.invocation_params.dir / (config.getoption("distbench_out") or REPORTS)


def command_line(config: pytest.Config) -> list[str]:
    """The command line, as a run stores it."""
    return ["pytest", *map(str, config.invocation_params.args)]


def xdist_problem(config: pytest.Config) -> str | None:
    """Reason why nothing can be timed in this process; None if it can."""
    # xdist's own way to recognise a worker (pytest-xdist.readthedocs.io, "Identifying the worker process")
    if not hasattr(config, "workerinput"):
        return None
    return (
        "distbench: pytest-xdist runs other tests at the same time on the cores to be timed; "
        "run suites in a separate pytest without -n (or with -n 0)"
    )


@contextmanager
def errors_as_failures() -> Iterator[None]:
    """Report errors of distbench as failures without a traceback through pytest."""
    try:
        yield
    except DistbenchError as error:
        pytest.fail(strip_control_characters(str(error)), pytrace=False)
