"""The arms of a gate: two that run side by side, or one that is compared with a stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from distbench.analysis.run import RunAnalysis
from distbench.api.progress import observe_progress
from distbench.api.stored_runs import damage_lines, drop_copies, readable_history_points
from distbench.cli.interruption import resume_hint_on_abort
from distbench.cli.output import print_warning
from distbench.cli.stored_runs import load_run
from distbench.core.errors import UsageError
from distbench.core.job import MEASURE
from distbench.gate.arms import GateArm, baseline_arm
from distbench.gate.stored_baseline import judge_stored
from distbench.gate.verdicts import GateResult
from distbench.ipc.launch_spec import PythonTarget
from distbench.record import catalog
from distbench.record.record_reader import retry_eagerly, untrusted_records
from distbench.record.run_folder import Run
from distbench.run import RunExecution
from distbench.suite import Overrides, Suite, load_suite
from distbench.suite.gate import GateRules
from distbench.system.temporary import temporary_folder


@dataclass(frozen=True)
class ArmOptions:
    """Baseline or candidate, as the command line describes it."""

    overrides: Overrides
    variables: Mapping[str, str]
    """Environment variables of its ranks."""
    changes: tuple[str, ...]
    """Differences from the other arm, as on the command line."""

    def load(self, file: Path) -> Suite:
        """Load the suite in *file*, with the jobs turned on that its gate requires."""
        suite = load_suite(file, self.overrides)
        if suite.gate.equivalence == "required" and "check" not in suite.jobs:
            return suite.with_job("check")
        return suite

    def arm(self, file: Path, name: str = "") -> GateArm:
        """Arm that runs here, named *name* or after its changes."""
        name = name or ", ".join(self.changes) or "the suite without changes"
        suite = self.load(file)
        if both := sorted(suite.variables & self.variables.keys()):
            raise UsageError(
                f"{', '.join(both)}: env of the suite sets it, and an arm can't set it again; remove it "
                f"there, or give the arm --set env.{both[0]}=VALUE"
            )
        return GateArm(name, suite, PythonTarget(environment=self.variables))


@contextmanager
def make_arms(
    file: Path, baseline: str, before: ArmOptions, after: ArmOptions, *, self_test: bool
) -> Iterator[tuple[GateArm, GateArm]]:
    """Baseline and candidate, ready to run."""
    arm, candidate = before.arm(file, "the same" if self_test else ""), after.arm(file)
    if not baseline:
        yield arm, candidate
        return
    with temporary_folder() as folder:
        yield baseline_arm(baseline, arm, folder, before.load), candidate


def with_pinned_rules(arm: GateArm) -> GateArm:
    """Return *arm* with the rules for an older baseline."""
    return replace(arm, suite=replace(arm.suite, gate=arm.suite.gate.for_pinned_baseline))


def run_against_stored(
    baseline: Run, suite: Suite, out: Path, command: Sequence[str], *, quiet: bool
) -> GateResult:
    """Run *suite* and compare it with the stored run *baseline*.

    Raises:
        RecordError: the baseline can't be read, or its records don't fit together; nothing was launched.
        InfrastructureError: the disk is full.
    """
    with untrusted_records(f"the records of the baseline {baseline.folder}"):
        retry_eagerly(partial(_check_baseline, baseline, suite.gate))
    trials = max(suite.measure.trials, suite.gate.min_pairs)
    suite = suite.with_job(MEASURE, replace(suite.measure, trials=trials))
    execution = RunExecution.create(suite, out, command)
    with resume_hint_on_abort(""), observe_progress(quiet=quiet) as watcher:
        stopped = execution.execute(watcher)
    result = retry_eagerly(partial(_judge, baseline, execution.run, out, suite.gate))
    return replace(result, stopped=stopped)


def _check_baseline(baseline: Run, rules: GateRules) -> None:
    """Compare *baseline* with itself: errors here would otherwise appear after the candidate's run."""
    before = load_run(baseline)
    judge_stored(before, before, [], rules, "")


def _judge(baseline: Run, candidate: Run, out: Path, rules: GateRules) -> GateResult:
    before, after = RunAnalysis.read(baseline), RunAnalysis.read(candidate)
    others = {run.folder.resolve(): run for run in (baseline, *catalog.runs_in(out))}
    others.pop(candidate.folder.resolve(), None)
    title = f"run {before.info.run_id} of {before.info.created}, stored"
    earlier = list(readable_history_points(drop_copies(others.values())[0], print_warning))
    result = judge_stored(before, after, earlier, rules, title)
    notes = [f"baseline: {line}" for line in damage_lines(before.damaged, baseline.folder)]
    return replace(result, folder=str(candidate.folder), notes=(*result.notes, *notes))
