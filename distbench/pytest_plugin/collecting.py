"""A suite as a collector, its cases as tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from distbench import env, plan, spec
from distbench.analysis.text import one_line, plain
from distbench.errors import DistbenchError
from distbench.plan import Planned
from distbench.pytest_plugin import FINISHED
from distbench.pytest_plugin.asking import command, disturbed, failing_plainly, overrides, runs_folder

if TYPE_CHECKING:
    from distbench.pytest_plugin.running import SuiteRun


class SuiteFile(pytest.File):
    """A suite. Its tests share one run, whose warm processes live from the first of them to the last."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.run: SuiteRun | None = None

    def collect(self) -> Iterator[CaseTest]:
        """Yield a test for each case.

        Raises:
            CollectError: all that is wrong with the suite, a line each; or other tests run meanwhile.
        """
        if why := disturbed(self.config):
            raise self.CollectError(why)
        try:
            # messages name the file as the command line would
            self._suite = spec.load(os.path.relpath(self.path), overrides(self.config))
            planned = plan.make(self._suite, env.detect(self._suite.device))
        except DistbenchError as error:
            raise self.CollectError(plain(str(error))) from error
        for item in planned.cases:
            yield CaseTest.from_parent(self, name=one_line(item.case.name), planned=item)

    def setup(self) -> None:
        """Begin the run of the tests that were chosen; go on with it if other tests came between."""
        # what runs and judges takes a second to import, which a look at what there is need not wait for
        from distbench.pytest_plugin.running import SuiteRun

        with failing_plainly():
            if self.run is None:
                items = (item for item in self.session.items if isinstance(item, CaseTest))
                chosen = [item.case for item in items if item.parent is self]
                self.run = SuiteRun(self._suite, chosen, runs_folder(self.config), command(self.config))
                self.config.stash.setdefault(FINISHED, []).append(self.run.run)
            self.run.open()

    def teardown(self) -> None:
        """End the processes of the run and write its report."""
        if self.run is not None:
            with failing_plainly():
                self.run.close()


class CaseTest(pytest.Item):
    """A case of a suite; it passes if all of its trials were measured and it is the training it should be."""

    def __init__(self, *, planned: Planned, **given: Any) -> None:
        super().__init__(**given)
        self.case = planned.case
        # by this name pytest-benchmark knows what --benchmark-only keeps and --benchmark-skip skips
        self.fixturenames = ["benchmark"]
        self.add_marker("distbench")
        if planned.problem:
            self.add_marker(pytest.mark.skip(reason=one_line(planned.problem)))

    def runtest(self) -> None:
        """Make the trials of the case."""
        from distbench.pytest_plugin.benchmarks import hand_over
        from distbench.pytest_plugin.telling import failure_text, numbers, untold

        assert isinstance(self.parent, SuiteFile)
        assert self.parent.run is not None, "the collector is set up first"
        with failing_plainly():
            made = self.parent.run.make(self.case)
        if text := failure_text(made):
            pytest.fail(text, pytrace=False)
        if why := untold(made):
            pytest.skip(why)
        self.user_properties += numbers(made.row)
        if why := hand_over(self.config, made):
            self.warn(pytest.PytestWarning(why))

    def reportinfo(self) -> tuple[os.PathLike[str], int, str]:
        """Return where the test stands."""
        return self.path, 0, self.name
