"""The fixture ``distbench_run``: whole runs, for tests that assert on their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from distbench import env, plan, spec
from distbench.analysis.summary import CaseSummary, summarise
from distbench.errors import UsageError, did_you_mean
from distbench.pytest_plugin.asking import command, disturbed
from distbench.pytest_plugin.running import Logged
from distbench.record import Record
from distbench.run import execute
from distbench.spec import Overrides
from distbench.store import Run, RunInfo


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, with what its records say together."""

    run: Run
    """Its folder, and what reads it."""
    records: tuple[Record, ...]
    """One for each trial."""
    cases: tuple[CaseSummary, ...]
    """One for each case, in the order of the suite."""

    @property
    def folder(self) -> Path:
        """Where the records lie."""
        return self.run.folder

    def case(self, name: str) -> CaseSummary:
        """Return the case of that name, or of that label where one case has it.

        Raises:
            UsageError: there is none, or several have the label.
        """
        for found in (
            [row for row in self.cases if row.case.name == name],
            [row for row in self.cases if row.case.label == name],
        ):
            if len(found) == 1:
                return found[0]
        known = [each for row in self.cases for each in (row.case.name, row.case.label)]
        raise UsageError(f"no one case has the name or label {name!r}; {did_you_mean(name, set(known))}")


class Runs:
    """Runs suites, each with its changes once a session: a run takes minutes, and its records stay."""

    def __init__(self, config: pytest.Config, folders: pytest.TempPathFactory) -> None:
        self._config, self._folders = config, folders
        self._made: dict[object, FinishedRun] = {}

    def __call__(
        self,
        suite: str | Path,
        *,
        set: Sequence[str] = (),  # noqa: A002 - what the command line calls it
        only: Sequence[str] = (),
        world_sizes: Sequence[int] | None = None,
        device: str | None = None,
        check: bool = False,
    ) -> FinishedRun:
        """Run *suite* as ``distbench run`` does and return what it left, failed cases included.

        Args:
            suite: A suite's file, relative to pytest's root folder.
            set: ``measure.steps=2``.
            only: Globs on label or name of the cases to keep.
            world_sizes: Numbers of devices.
            device: auto, cpu or cuda.
            check: First check that each case is the same training.

        Raises:
            SuiteError: all that is wrong with the suite or its changes.
            InfrastructureError: the disk is full; what was stored is whole.
            KeyboardInterrupt: Ctrl-C or SIGTERM; no process of it is left.
        """
        __tracebackhide__ = True
        if why := disturbed(self._config):
            pytest.fail(why, pytrace=False)
        file = self._config.rootpath / suite
        sizes = None if world_sizes is None else tuple(world_sizes)
        key = (file, tuple(set), tuple(only), sizes, device, check)
        if key not in self._made:
            jobs = ["check"] if check else []
            asked = Overrides(set=set, only=only, world_sizes=sizes, device=device, jobs=jobs)
            self._made[key] = self._run(file, asked)
        return self._made[key]

    def _run(self, file: Path, overrides: Overrides) -> FinishedRun:
        suite = spec.load(file, overrides)
        planned = plan.make(suite, env.detect(suite.device))
        info = RunInfo.begun(suite, planned.cases, command(self._config))
        run = Run.create(self._out(), info, suite.text)
        if execute(run, info, suite, planned, Logged()).interrupted:
            raise KeyboardInterrupt
        records = tuple(run.records())
        return FinishedRun(run, records, tuple(summarise(run.info(), records)))

    def _out(self) -> Path:
        asked = self._config.getoption("distbench_out")
        return self._config.invocation_params.dir / asked if asked else self._folders.mktemp("distbench")
