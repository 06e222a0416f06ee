"""``distbench gate --baseline RUN``: the candidate alone, compared with a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distbench.analysis.run import AnalysedRun
from distbench.cli.occasions import readable
from distbench.cli.progress import observer
from distbench.cli.reading import analysed, damage
from distbench.cli.stopping import resumable
from distbench.gate.advisory import judged
from distbench.gate.verdicts import Result
from distbench.job import MEASURE
from distbench.record import runs
from distbench.record.store import Run
from distbench.run import Execution
from distbench.suite import Suite


def gate_stored(baseline: Run, suite: Suite, out: Path, command: Sequence[str], *, quiet: bool) -> Result:
    """Run *suite* and compare it with the stored run *baseline*.

    Raises:
        RecordError: the baseline can't be read.
        InfrastructureError: the disk is full.
    """
    before = analysed(baseline)
    trials = max(suite.measure.trials, suite.gate.min_pairs)
    suite = suite.asking_for(MEASURE, replace(suite.measure, trials=trials))
    execution = Execution.start(suite, out, command)
    with resumable(""), observer(quiet=quiet) as watcher:
        execution.execute(watcher)
    after = AnalysedRun.read(execution.run)
    others = {run.folder.resolve(): run for run in (baseline, *runs.inside(out))}
    others.pop(execution.run.folder.resolve(), None)
    title = f"run {before.info.run_id} of {before.info.created}, stored"
    result = judged(before, after, list(readable(others.values())), suite.gate, title)
    notes = [f"baseline: {line}" for line in damage(before.damaged, baseline.folder)]
    result = replace(result, folder=str(execution.run.folder), notes=(*result.notes, *notes))
    return replace(result, state="interrupted") if after.info.state == "interrupted" else result
