"""``distbench calibrate``: measure the smallest change that this machine can detect."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.output import apply_style, print_json, print_note, print_text, terminal_width

if TYPE_CHECKING:
    from distbench.suite.gate import GateRules, Tolerances


@ignores_time_warnings
def calibrate(
    context: typer.Context,
    suite: options.SuiteArgument,
    pairs: Annotated[
        int, options.option("--pairs", "N", "Pairs of equal trials per case.", has_default=True)
    ] = 10,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Measure the detectable change on this machine (A/A pairs)."""
    from distbench.api.progress import observe_progress
    from distbench.cli.interruption import print_stopped
    from distbench.cli.started_ranks import join_started_ranks
    from distbench.gate import calibration, view
    from distbench.gate.arms import GateArm
    from distbench.gate.gate import Gate
    from distbench.suite import load_suite

    rules = {f"gate.{key}={pairs}": f"--pairs {pairs}" for key in ("min_pairs", "max_pairs")}
    loaded = load_suite(
        suite, options.make_overrides([*set_, *rules], only, world_sizes, device, option_of=rules)
    )
    join_started_ranks(context, loaded, out)
    loaded = dataclasses.replace(loaded, gate=_with_throughput(loaded.gate))
    baseline, candidate = GateArm("the same", loaded), GateArm("the suite without changes", loaded)
    gate = Gate(out, baseline, candidate, command=context.obj, calibrates=True)
    with observe_progress(quiet=quiet) as watcher:
        result = gate.run(watcher)
    calibrated = calibration.calibrations_from(result, gate.cases, loaded.measure)
    file = calibration.save_calibrations(calibrated)
    if as_json:
        print_json({"cases": {case_id: dataclasses.asdict(case) for case_id, case in calibrated.items()}})
    else:
        print_text(view.calibration_table(list(calibrated.values())).to_text(terminal_width(), apply_style))
    print_note(f"calibration: {file}; records: {result.folder}")
    if result.stopped:
        return print_stopped(result.stopped, "")
    return 0 if calibrated else 1


def _with_throughput(rules: GateRules) -> GateRules:
    """Return *rules* with throughput compared for every case.

    Its spread is needed even where it is not gated.
    """
    from distbench.suite.gate import Tolerances

    def compared(own: Tolerances) -> Tolerances:
        return dataclasses.replace(own, tokens_per_s=own.tokens_per_s or Tolerances().tokens_per_s)

    strategies = {glob: compared(own) for glob, own in rules.strategies.items()}
    return dataclasses.replace(rules, tolerances=compared(rules.tolerances), strategies=strategies)
