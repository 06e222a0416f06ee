"""``distbench launch``: submit a run to an engine."""

from __future__ import annotations

from typing import Annotated

from distbench.cli import options, queue_submission
from distbench.cli.options import flag
from distbench.cli.output import print_text
from distbench.core.errors import UsageError
from distbench.suite import load_suite


def launch(
    suite: options.SuiteArgument,
    on: options.OnOption = "",
    nodes: options.NodesOption = None,
    only_print: Annotated[bool, flag("--print", text="Print it instead: a batch script, manifests.")] = False,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    check: options.CheckOption = False,
) -> int:
    """Submit a run to an engine, such as Slurm, and return."""
    if not on:
        raise UsageError("launch: missing --on LAUNCHER, such as --on slurm")
    loaded = load_suite(suite, options.make_overrides(set_, only, world_sizes, device, check=check, on=on))
    overrides = queue_submission.to_run_arguments(set_, only, world_sizes, device, check=check)
    arguments = ["run", str(suite), "--out", str(out), *overrides]
    submission = queue_submission.make_submission(loaded, arguments, nodes, overrides)
    print_text((submission.text if only_print else queue_submission.submit(submission)).rstrip("\n"))
    return 0
