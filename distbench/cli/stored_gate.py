"""``distbench gate --baseline RUN``: the candidate alone, compared with a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.run import RunAnalysis
from distbench.cli.copies import drop_copies
from distbench.cli.history_inputs import readable_history_points
from distbench.cli.interruption import resume_hint_on_abort
from distbench.cli.progress import observe_progress
from distbench.cli.run_reader import damage_lines, load_run
from distbench.core.job import MEASURE
from distbench.gate.stored_baseline import judge_stored
from distbench.gate.verdicts import GateResult
from distbench.record import catalog
from distbench.record.record_reader import retry_eagerly, untrusted_records
from distbench.record.run_folder import Run
from distbench.run import RunExecution
from distbench.suite import Suite
from distbench.suite.gate import GateRules


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
    result = judge_stored(
        before, after, list(readable_history_points(drop_copies(others.values())[0])), rules, title
    )
    notes = [f"baseline: {line}" for line in damage_lines(before.damaged, baseline.folder)]
    return replace(result, folder=str(candidate.folder), notes=(*result.notes, *notes))
