"""``distbench calibrate``: the smallest change that this machine can tell from noise."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.colour import paint
from distbench.cli.interruption import ended
from distbench.cli.output import note, say, say_json, width
from distbench.cli.progress import observer
from distbench.gate import calibration, view
from distbench.gate.arms import Arm
from distbench.gate.gate import Gate
from distbench.run import unwarned
from distbench.suite import load
from distbench.suite.gate import GateRules, Tolerances


@unwarned()
def calibrate(
    context: typer.Context,
    suite: options.Suite,
    pairs: Annotated[
        int, options.option("--pairs", "N", "Pairs of equal trials per case.", has_default=True)
    ] = 10,
    set_: options.Set = [],
    only: options.Only = [],
    world_sizes: options.WorldSizes = "",
    device: options.Device = "",
    out: options.Out = options.REPORTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Measure what this machine can resolve (A/A pairs)."""
    rules = {f"gate.{key}={pairs}": f"--pairs {pairs}" for key in ("min_pairs", "max_pairs")}
    loaded = load(suite, options.overrides([*set_, *rules], only, world_sizes, device, option_of=rules))
    loaded = dataclasses.replace(loaded, gate=_with_throughput(loaded.gate))
    baseline, candidate = Arm("the same", loaded), Arm("the suite as it stands", loaded)
    gate = Gate(out, baseline, candidate, command=context.obj, calibrates=True)
    with observer(quiet=quiet) as watcher:
        result = gate.run(watcher)
    calibrated = calibration.calibrated(result, gate.cases, loaded.measure)
    file = calibration.save(calibrated)
    if as_json:
        say_json({"cases": {case_id: dataclasses.asdict(case) for case_id, case in calibrated.items()}})
    else:
        say(view.calibration_sheet(list(calibrated.values())).as_text(width(), paint))
    note(f"calibration: {file}; records: {result.folder}")
    if result.stopped:
        return ended(result.stopped, "")
    return 0 if calibrated else 1


def _with_throughput(rules: GateRules) -> GateRules:
    """*rules* with throughput compared for every case: its spread is needed even where it is not gated."""

    def compared(own: Tolerances) -> Tolerances:
        return dataclasses.replace(own, tokens_per_s=own.tokens_per_s or Tolerances().tokens_per_s)

    strategies = {glob: compared(own) for glob, own in rules.strategies.items()}
    return dataclasses.replace(rules, tolerances=compared(rules.tolerances), strategies=strategies)
