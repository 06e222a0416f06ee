"""``distbench gate --baseline RUN``: the candidate alone, compared with a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.run import AnalysedRun
from distbench.cli.copies import once
from distbench.cli.history_inputs import readable
from distbench.cli.interruption import resumable
from distbench.cli.progress import observer
from distbench.cli.reading import analysed, damage
from distbench.core.job import MEASURE
from distbench.gate.stored_baseline import judged
from distbench.gate.verdicts import Result
from distbench.record import catalog
from distbench.record.reading import rereading
from distbench.record.run_folder import Run
from distbench.record.untrusted import untrusted_records
from distbench.run import Execution
from distbench.suite import Suite
from distbench.suite.gate import GateRules


def gate_stored(baseline: Run, suite: Suite, out: Path, command: Sequence[str], *, quiet: bool) -> Result:
    """Run *suite* and compare it with the stored run *baseline*.

    Raises:
        RecordError: the baseline can't be read, or its records don't fit together; nothing was launched.
        InfrastructureError: the disk is full.
    """
    with untrusted_records(f"the records of the baseline {baseline.folder}"):
        rereading(partial(_check, baseline, suite.gate))
    trials = max(suite.measure.trials, suite.gate.min_pairs)
    suite = suite.asking_for(MEASURE, replace(suite.measure, trials=trials))
    execution = Execution.start(suite, out, command)
    with resumable(""), observer(quiet=quiet) as watcher:
        stopped = execution.execute(watcher)
    result = rereading(partial(_judged, baseline, execution.run, out, suite.gate))
    return replace(result, stopped=stopped)


def _check(baseline: Run, rules: GateRules) -> None:
    """Compare *baseline* with itself: what fails here would fail after the candidate has taken its time."""
    before = analysed(baseline)
    judged(before, before, [], rules, "")


def _judged(baseline: Run, candidate: Run, out: Path, rules: GateRules) -> Result:
    before, after = AnalysedRun.read(baseline), AnalysedRun.read(candidate)
    others = {run.folder.resolve(): run for run in (baseline, *catalog.inside(out))}
    others.pop(candidate.folder.resolve(), None)
    title = f"run {before.info.run_id} of {before.info.created}, stored"
    result = judged(before, after, list(readable(once(others.values())[0])), rules, title)
    notes = [f"baseline: {line}" for line in damage(before.damaged, baseline.folder)]
    return replace(result, folder=str(candidate.folder), notes=(*result.notes, *notes))
