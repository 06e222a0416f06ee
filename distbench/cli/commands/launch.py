"""``distbench launch``: submit a run to an engine."""

from __future__ import annotations

from typing import Annotated

from distbench.cli import options
from distbench.cli.options import flag
from distbench.cli.output import print_text
from distbench.core.errors import UsageError


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
    from distbench.cli import queue_submission
    from distbench.suite import load_suite

    if not on:
        raise UsageError("launch: missing --on LAUNCHER, such as --on slurm")
    overrides = options.make_overrides(set_, only, world_sizes, device, check=check, on=on)
    loaded, given = load_suite(suite, overrides), queue_submission.to_arguments(overrides)
    arguments = ["run", str(suite), "--out", str(out), *given]
    files = {suite.name: loaded.text}
    submission = queue_submission.make_submission(loaded, arguments, nodes, files, overrides=given)
    print_text((submission.text if only_print else queue_submission.submit(submission)).rstrip("\n"))
    return 0
