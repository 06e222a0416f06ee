"""The folder of a gate: ``arms.json``, one run per arm, and ``gate.json``.

If launches failed, there is also ``failures.json``: a second try replaces the record of the first.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.core.errors import UsageError
from distbench.core.text import one_line
from distbench.gate.arms import GateArm
from distbench.gate.launch_failures import FailureLog
from distbench.gate.verdicts import GateResult
from distbench.plan import Plan
from distbench.record import read_json
from distbench.record.run_folder import Run, RunInfo, RunState, folder_stamp, new_run_id, utc_now, write_json

GateArms = tuple[GateArm, GateArm]
"""Baseline and candidate."""
_NAMES = ("baseline", "candidate")
_ARMS_FILE = "arms.json"
_RESULT_FILE = "gate.json"
_FAILURES_FILE = "failures.json"


@dataclass(frozen=True)
class GateFolder:
    """Folder of one gate."""

    path: Path
    """Absolute, because worker processes start in other folders."""
    runs: tuple[Run, Run]

    @classmethod
    def create(
        cls, out: Path, arms: GateArms, plans: tuple[Plan, Plan], command: Sequence[str]
    ) -> GateFolder:
        """Create a new folder under *out*, whose runs record the command line *command*.

        Raises:
            UsageError: the folder can't be created.
        """
        path = (out / f"gate-{folder_stamp(utc_now())}-{new_run_id()}").resolve()
        baseline, candidate = (
            Run.create_at(
                path / name,
                RunInfo.create(arm.suite, plan.cases, list(command), arm.machine),
                arm.suite.text,
            )
            for name, arm, plan in zip(_NAMES, arms, plans, strict=True)
        )
        write_json(path / _ARMS_FILE, _titles(arms))
        return cls(path, (baseline, candidate))

    @classmethod
    def resume(cls, name: Path, arms: GateArms) -> GateFolder:
        """Open the folder of an interrupted gate of the same arms.

        Raises:
            UsageError: it is not a gate's folder, or the gate compared other arms.
        """
        path = name.resolve()
        if not (path / _ARMS_FILE).is_file():
            raise UsageError(f"--resume {name}: not the folder of a gate ({_ARMS_FILE} is missing)")
        runs = Run(path / _NAMES[0]), Run(path / _NAMES[1])
        started = [read_json(path / _ARMS_FILE), *(_without_gate_section(run.info().suite) for run in runs)]
        if started != [_titles(arms), *(_without_gate_section(arm.suite.to_resolved()) for arm in arms)]:
            raise UsageError(
                f"--resume {name}: this gate compares other arms ({one_line(str(started[0]))}) or another "
                f"suite; repeat the command that started it: {shlex.join(runs[0].info().command)}"
            )
        return cls(path, runs)

    @property
    def gate_id(self) -> str:
        """Id of the gate, the last part of the folder's name."""
        return self.path.name.rpartition("-")[2]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folders of both runs while the body runs.

        Raises:
            UsageError: another process runs trials in one of them.
            InfrastructureError: the folder is not writable, or its disk is full.
        """
        with ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.hold_lock())
            yield

    def set_state(self, state: RunState) -> None:
        """Write *state* to both runs."""
        for run in self.runs:
            run.write_info(dataclasses.replace(run.info(), state=state))

    @property
    def failures(self) -> FailureLog:
        """Launches that failed so far."""
        return FailureLog(self.path / _FAILURES_FILE)

    def write_result(self, result: GateResult) -> None:
        """Write ``gate.json``."""
        write_json(self.path / _RESULT_FILE, result.to_json())

    def analyse(self) -> tuple[RunAnalysis, RunAnalysis]:
        """Analyse the runs of both arms."""
        baseline, candidate = map(RunAnalysis.read, self.runs)
        return baseline, candidate


def _titles(arms: GateArms) -> dict[str, str]:
    return {name: arm.title for name, arm in zip(_NAMES, arms, strict=True)}


def _without_gate_section(suite: dict[str, Any]) -> dict[str, Any]:
    """Resolved *suite* without its gate section, which may change when a gate is resumed."""
    return {key: value for key, value in suite.items() if key != "gate"}
