"""The fixture ``distbench_run``: complete runs, for tests that make assertions on their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.errors import UsageError, did_you_mean
from distbench.pytest_plugin.options import command_line, xdist_problem
from distbench.pytest_plugin.session import LoggingObserver, exit_before_time_limit
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.run import RunExecution
from distbench.suite import Overrides
from distbench.suite import load_suite as load_suite


@dataclass(frozen=True)
class FinishedRun:
    """A finished run with its records and their summary."""

    run: Run
    """Its folder and access to it."""
    records: tuple[Record, ...]
    """One record per trial."""
    cases: tuple[CaseSummary, ...]
    """One summary per case, in the order of the suite."""

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.run.folder

    def case(self, name: str) -> CaseSummary:
        """Find the case with that name, or with that label if only one case has it.

        Raises:
            UsageError: no case matches, or several have the label.
        """
        for called in ("name", "label"):
            matches = [row for row in self.cases if getattr(row.case, called) == name]
            if len(matches) == 1:
                return matches[0]
        known = [text for row in self.cases for text in (row.case.name, row.case.label)]
        raise UsageError(f"no single case has the name or label {name!r}; {did_you_mean(name, set(known))}")


class RunFactory:
    """Runs suites, each once per session and overrides, because a run takes minutes."""

    def __init__(self, config: pytest.Config, folders: pytest.TempPathFactory) -> None:
        self._config, self._folders = config, folders
        self._finished: dict[object, FinishedRun] = {}

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
        """Run *suite* like ``distbench run`` and return the result, including failed cases.

        Args:
            suite: A suite's file, relative to pytest's root folder.
            set: ``measure.steps=2``.
            only: Globs on the label or name of cases to run.
            world_sizes: Numbers of devices.
            device: auto, cpu or cuda.
            check: First check each case against its reference.

        Raises:
            SuiteError: all mistakes in the suite or its overrides.
            InfrastructureError: the disk is full; everything stored so far is intact.
            KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left.
            Exit: the time limit around pytest is too near to finish the run.
        """
        __tracebackhide__ = True
        if why := xdist_problem(self._config):
            pytest.fail(why, pytrace=False)
        file = self._config.rootpath / suite
        sizes = None if world_sizes is None else tuple(world_sizes)
        key = (file, tuple(set), tuple(only), sizes, device, check)
        if key not in self._finished:
            jobs = ["check"] if check else []
            overrides = Overrides(set=set, only=only, world_sizes=sizes, device=device, jobs=jobs)
            self._finished[key] = self._run(file, overrides)
        return self._finished[key]

    def _run(self, file: Path, overrides: Overrides) -> FinishedRun:
        option = self._config.getoption("distbench_out")
        out = self._config.invocation_params.dir / option if option else self._folders.mktemp("distbench")
        execution = RunExecution.create(load_suite(file, overrides), out, command_line(self._config))
        stopped = execution.execute(LoggingObserver())
        if stopped == "time":
            exit_before_time_limit(execution.run)
        if stopped:
            raise KeyboardInterrupt
        analysed = RunAnalysis.read(execution.run)
        return FinishedRun(execution.run, tuple(analysed.records), analysed.cases)
