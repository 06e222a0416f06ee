"""``distbench calibrate``: what changes this machine can tell from its own noise."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from distbench import spec
from distbench.cli.printing import note, say, say_json, width
from distbench.cli.progress import observer
from distbench.cli.running import INTERRUPTED
from distbench.gate import calibration, view
from distbench.gate.arms import Arm
from distbench.gate.gating import Gate
from distbench.report.tables import as_text
from distbench.spec.gate import Gate as Rules
from distbench.spec.gate import Tolerances


def calibrate_suite(file: Path, overrides: spec.Overrides, *, out: Path, as_json: bool, quiet: bool) -> int:
    """Run pairs of equal trials of each case, keep their spread for this machine, and tell it.

    Raises:
        SuiteError: a suite that is wrong.
        InfrastructureError: the disk is full.
    """
    suite = spec.load(file, overrides)
    suite = dataclasses.replace(suite, gate=_watching_the_pace(suite.gate))
    baseline, candidate = Arm("the same", suite), Arm("the suite as it stands", suite)
    with observer(quiet=quiet) as watcher:
        gate = Gate(out, baseline, candidate, watcher, calibrates=True)
        result = gate.run()
    found = calibration.calibrated(result, gate.cases, suite.measure)
    kept = calibration.save(found)
    if as_json:
        say_json({"cases": {key: dataclasses.asdict(told) for key, told in found.items()}})
    else:
        say(as_text(view.calibration_table(list(found.values())), width()))
    note(f"calibration: {kept}; records: {result.folder}")
    return INTERRUPTED if result.state == "interrupted" else 0 if found else 1


def _watching_the_pace(rules: Rules) -> Rules:
    """Return *rules* that look at the pace everywhere: its spread is wanted also where it is not gated."""

    def watched(own: Tolerances) -> Tolerances:
        return dataclasses.replace(own, tokens_per_s=own.tokens_per_s or Tolerances().tokens_per_s)

    strategies = {glob: watched(own) for glob, own in rules.strategies.items()}
    return dataclasses.replace(rules, tolerances=watched(rules.tolerances), strategies=strategies)
