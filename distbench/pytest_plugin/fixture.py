"""The fixture ``distbench_run``: complete runs, for tests that make assertions on their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from distbench.api.run import RunResults
from distbench.pytest_plugin.options import command_line, xdist_problem
from distbench.pytest_plugin.session import LoggingObserver, exit_before_time_limit
from distbench.run import RunExecution
from distbench.suite import Overrides
from distbench.suite import load_suite as load_suite


class RunFactory:
    """Runs suites, each once per session and overrides, because a run takes minutes."""

    def __init__(self, config: pytest.Config, folders: pytest.TempPathFactory) -> None:
        self._config, self._folders = config, folders
        self._finished: dict[object, RunResults] = {}

    def __call__(
        self,
        suite: str | Path,
        *,
        set: Sequence[str] = (),  # noqa: A002 - what the command line calls it
        only: Sequence[str] = (),
        world_sizes: Sequence[int] | None = None,
        device: str | None = None,
        check: bool = False,
    ) -> RunResults:
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

    def _run(self, file: Path, overrides: Overrides) -> RunResults:
        option = self._config.getoption("distbench_out")
        out = self._config.invocation_params.dir / option if option else self._folders.mktemp("distbench")
        execution = RunExecution.create(load_suite(file, overrides), out, command_line(self._config))
        stopped = execution.execute(LoggingObserver())
        if stopped == "time":
            exit_before_time_limit(execution.run)
        if stopped:
            raise KeyboardInterrupt
        return RunResults(execution.run)
