"""``distbench gate --baseline RUN``: the candidate alone, held against a run of another occasion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distbench import spec
from distbench.cli.printing import note
from distbench.cli.running import run_quietly
from distbench.errors import DistbenchError
from distbench.gate.advisory import Stored, judged
from distbench.gate.verdicts import Result
from distbench.store import Run


def stored_run(name: str, out: Path) -> Run | None:
    """Return the run that ``--baseline`` names, by folder or the start of its id; None if it names none."""
    if name and (Path(name) / "run.json").is_file():
        return Run(Path(name))
    # the start of an id may be that of a commit too: a run that is here is meant
    found = list(out.glob(f"*-{name}*/run.json")) if re.fullmatch(r"[0-9a-f]{4,8}", name) else []
    return Run(found[0].parent) if len(found) == 1 else None


def advise(baseline: Run, suite: spec.Suite, *, out: Path, quiet: bool) -> Result:
    """Run *suite* and return what it is against the stored run *baseline*.

    Raises:
        RecordError: the baseline can't be read.
        InfrastructureError: the disk is full.
    """
    before = _read(baseline)
    trials = max(suite.measure.trials, suite.gate.min_pairs)
    run = run_quietly(replace(suite, measure=replace(suite.measure, trials=trials)), out, quiet=quiet)
    after = _read(run)
    mine = (before.info.run_id, after.info.run_id)
    others = [each for each in _others(out) if each.info.run_id not in mine]
    told = f"run {before.info.run_id} of {before.info.created}, stored"
    result = judged(before, after, others, suite.gate, told)
    result = replace(result, folder=str(run.folder))
    return replace(result, state="interrupted") if after.info.state == "interrupted" else result


def _read(run: Run) -> Stored:
    return Stored(run.info(), list(run.records()))


def _others(out: Path) -> Iterator[Stored]:
    """Yield the runs in the folder *out* that can be read: what occasions differ by."""
    for file in sorted(out.glob("*/run.json")):
        try:
            yield _read(Run(file.parent))
        except DistbenchError as error:
            note(f"distbench: warning: a run is left out: {error}")
