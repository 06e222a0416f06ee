"""The stored runs of the repository, which no test changes, read once for all tests of a file."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.record.run_folder import Run

SAMPLE = Path(__file__).parents[2] / "reports" / "sample"
FROZEN = Path(__file__).parents[1] / "frozen" / "run"


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Each command would take half a second to read the sample."""
    read = RunAnalysis.read
    kept = functools.cache(lambda folder: read(Run(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RunAnalysis,
            "read",
            lambda run: kept(run.folder) if run.folder in (SAMPLE, FROZEN) else read(run),
        )
        yield
