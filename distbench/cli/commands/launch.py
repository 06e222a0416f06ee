"""``distbench launch``: hand a run to an engine and leave it there."""

from __future__ import annotations

from typing import Annotated

from distbench.cli import options, queue_submission
from distbench.cli.options import flag
from distbench.cli.output import say
from distbench.core.errors import UsageError
from distbench.suite import load


def launch(
    suite: options.Suite,
    on: options.On = "",
    nodes: options.Nodes = None,
    only_print: Annotated[bool, flag("--print", text="Print it instead: a batch script, manifests.")] = False,
    out: options.Out = options.REPORTS,
    set_: options.Set = [],
    only: options.Only = [],
    world_sizes: options.WorldSizes = "",
    device: options.Device = "",
    check: options.Check = False,
) -> int:
    """Hand a run to an engine, such as Slurm, and leave it there."""
    if not on:
        raise UsageError("launch: missing --on LAUNCHER, such as --on slurm")
    loaded = load(suite, options.overrides(set_, only, world_sizes, device, check=check, on=on))
    overrides = queue_submission.override_arguments(set_, only, world_sizes, device, check=check)
    arguments = ["run", str(suite), "--out", str(out), *overrides]
    submission = queue_submission.submission_of(loaded, arguments, nodes, overrides)
    say((submission.text if only_print else queue_submission.hand_over(submission)).rstrip("\n"))
    return 0
