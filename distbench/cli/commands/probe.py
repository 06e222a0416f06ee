"""``distbench probe``: the rates of this machine that step times follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.options import argument, option

_SUITE = """\
name: probe
description: Rates of this machine.
workload: {transformer: {preset: tiny}}
data: synthetic
batch: {per_device_batch_size: 4}
precision: {compute: fp32}
strategies: [ddp]
metrics: [startup]
measure: {trials: 0}
probe: {}
"""


@ignores_time_warnings
def probe(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        argument(
            "[SUITE]",
            "Suite file: uses its models, precision, devices and launcher, not its trainings (default: a "
            "small transformer in fp32).",
        ),
    ] = None,
    launcher: Annotated[str, option("--launcher", "NAME", "Launcher, as in a suite: local, slurm.")] = "",
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Measure the rates of this machine, for predictions."""
    from distbench.cli.one_job import one_job_suite, run_one_job

    changes = {f"launcher={launcher}": f"--launcher {launcher}"} if launcher else {}
    changed = options.make_overrides([*changes, *set_], [], world_sizes, device, option_of=changes)
    loaded = one_job_suite("probe", _SUITE, suite, changed)
    return run_one_job(context, loaded, out, "rates", as_json=as_json, quiet=quiet)
