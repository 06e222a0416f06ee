"""``distbench collectives``: measure the links between ranks, like nccl-tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.options import argument, option
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.suite import Overrides, Suite

_KIND = "collectives"
_SUITE = """\
name: collectives
description: Bandwidth and latency of collectives.
# nothing is trained: these only say on which devices
workload: {transformer: {preset: tiny}}
data: synthetic
batch: {per_device_batch_size: 1}
strategies: [ddp]
metrics: [startup]
measure: {trials: 0}
collectives: {}
"""


@ignores_time_warnings
def collectives(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        argument("[SUITE]", "Suite file: uses its devices, launcher and collectives, not its trainings."),
    ] = None,
    operations: Annotated[
        str, option("--operations", "OP,OP", "all_reduce, all_gather, ... (default: all of them).")
    ] = "",
    sizes: Annotated[str, option("--sizes", "MIN..MAX", "Message sizes: 8KiB..64MiB, or 1MiB,16MiB.")] = "",
    factor: Annotated[str, option("--factor", "N", "Each size of a range is N times the one before.")] = "",
    dtypes: Annotated[str, option("--dtypes", "DTYPE,DTYPE", "fp64, fp32, bf16, fp16.")] = "",
    groups: Annotated[str, option("--groups", "GROUP,GROUP", "all, node, between.")] = "",
    launcher: Annotated[str, option("--launcher", "NAME", "Launcher, as in a suite: local, slurm.")] = "",
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Measure all-reduce and the like, as nccl-tests does."""
    from distbench.cli.one_job import run_one_job

    changes = {f"launcher={launcher}": f"--launcher {launcher}"} if launcher else {}
    listed = {"operations": operations, "dtypes": dtypes, "groups": groups}
    changes |= {f"{_KIND}.{key}=[{text}]": f"--{key} {text}" for key, text in listed.items() if text}
    if sizes:
        changes[f"{_KIND}.sizes={sizes if '..' in sizes else f'[{sizes}]'}"] = f"--sizes {sizes}"
    if factor:
        changes[f"{_KIND}.factor={factor}"] = f"--factor {factor}"
    changed = options.make_overrides([*changes, *set_], [], world_sizes, device, option_of=changes)
    loaded = _only_collectives(suite, changed)
    return run_one_job(context, loaded, out, "links", as_json=as_json, quiet=quiet)


def _only_collectives(file: Path | None, changed: Overrides) -> Suite:
    """Suite with collectives only.

    Raises:
        SuiteError: the suite or *changed* is invalid.
        UsageError: there is only one device, so there are no links to measure.
    """
    from distbench.cli.one_job import one_job_suite

    suite = one_job_suite(_KIND, _SUITE, file, changed)
    if file is None and changed.world_sizes is None and suite.world_sizes == (1,):
        raise UsageError(
            "collectives: this machine has one device, and a collective needs at least two; on the "
            "CPU, use --world-sizes 2 to start two ranks"
        )
    return suite
