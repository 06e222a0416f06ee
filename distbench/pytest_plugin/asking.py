"""What pytest was asked for, and what it says when that can't be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distbench.analysis.text import plain
from distbench.errors import DistbenchError
from distbench.spec import Overrides

REPORTS = "reports"


def overrides(config: pytest.Config) -> Overrides:
    """Return what the options change in every suite."""
    return Overrides(
        set=config.getoption("distbench_set"),
        only=config.getoption("distbench_only"),
        world_sizes=config.getoption("distbench_world_sizes"),
        device=config.getoption("distbench_device"),
        jobs=["check"] if config.getoption("distbench_check") else [],
    )


def runs_folder(config: pytest.Config) -> Path:
    """Return the folder of the runs of collected suites."""
    # a test may change the working directory
    return config.invocation_params.dir / (config.getoption("distbench_out") or REPORTS)


def command(config: pytest.Config) -> list[str]:
    """Return the command line as a run keeps it."""
    return ["pytest", *map(str, config.invocation_params.args)]


def disturbed(config: pytest.Config) -> str | None:
    """Return why nothing can be timed in this process, or None."""
    # xdist's own way to tell a worker (pytest-xdist.readthedocs.io, "Identifying the worker process")
    if not hasattr(config, "workerinput"):
        return None
    return (
        "distbench: pytest-xdist runs other tests beside this one, on the cores that it would time; "
        "run suites in a pytest of their own, without -n (or with -n 0)"
    )


@contextmanager
def failing_plainly() -> Iterator[None]:
    """Turn what distbench refuses into a failure that says so, without a traceback through pytest."""
    try:
        yield
    except DistbenchError as error:
        pytest.fail(plain(str(error)), pytrace=False)
