"""A suite as a collector, its cases as tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from distbench import plan
from distbench.core.errors import DistbenchError
from distbench.core.text import one_line, strip_control_characters
from distbench.plan import PlannedCase
from distbench.pytest_plugin import FINISHED_RUNS
from distbench.pytest_plugin.options import (
    command_line,
    errors_as_failures,
    runs_folder,
    suite_overrides,
    xdist_problem,
)
from distbench.suite import load_suite as load_suite

if TYPE_CHECKING:
    from distbench.pytest_plugin.session import SuiteRun


class SuiteFile(pytest.File):
    """A suite; its tests share one run, whose warm processes live from the first test to the last."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.run: SuiteRun | None = None

    def collect(self) -> Iterator[CaseTest]:
        """Yield one test per case.

        Raises:
            CollectError: all mistakes in the suite, one per line; or other tests run at the same time.
        """
        if why := xdist_problem(self.config):
            raise self.CollectError(why)
        try:
            # messages name the file as the command line does
            self._suite = load_suite(os.path.relpath(self.path), suite_overrides(self.config))
            planned = plan.make_plan(self._suite)
        except DistbenchError as error:
            raise self.CollectError(strip_control_characters(str(error))) from error
        for item in planned.cases:
            yield CaseTest.from_parent(self, name=one_line(item.case.name), planned=item)

    def setup(self) -> None:
        """Start the run of the selected tests, or continue it if other tests came between."""
        # imports for running and judging take a second, which collecting should not cost
        from distbench.pytest_plugin.session import SuiteRun

        with errors_as_failures():
            if self.run is None:
                items = (item for item in self.session.items if isinstance(item, CaseTest))
                selected = [item.case for item in items if item.parent is self]
                self.run = SuiteRun(
                    self._suite, selected, runs_folder(self.config), command_line(self.config)
                )
                self.config.stash.setdefault(FINISHED_RUNS, []).append(self.run.run)
            self.run.open()

    def teardown(self) -> None:
        """End the processes of the run and write its report."""
        if self.run is not None:
            with errors_as_failures():
                self.run.close()


class CaseTest(pytest.Item):
    """A case of a suite; it passes if all its trials were measured and no check found a difference."""

    def __init__(self, *, planned: PlannedCase, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.case = planned.case
        # the name by which pytest-benchmark applies --benchmark-only and --benchmark-skip
        self.fixturenames = ["benchmark"]
        self.add_marker("distbench")
        if planned.problem:
            self.add_marker(pytest.mark.skip(reason=one_line(planned.problem)))

    def runtest(self) -> None:
        """Run the trials of the case."""
        from distbench.pytest_plugin.output import add_benchmark, failure_text, junit_properties, skip_reason

        assert isinstance(self.parent, SuiteFile)
        assert self.parent.run is not None, "the collector is set up first"
        with errors_as_failures():
            outcome = self.parent.run.run_case(self.case)
        if text := failure_text(outcome):
            pytest.fail(text, pytrace=False)
        if why := skip_reason(outcome):
            pytest.skip(why)
        self.user_properties += junit_properties(outcome.row)
        if why := add_benchmark(self.config, outcome):
            self.warn(pytest.PytestWarning(why))

    def reportinfo(self) -> tuple[os.PathLike[str], int, str]:
        """Location and name of the test."""
        return self.path, 0, self.name
