"""``distbench prepare``: build in advance what a suite needs once."""

from __future__ import annotations

import time

from distbench import env, plan
from distbench.cli.options import Device, Only, Quiet, Set, Suite, WorldSizes, overrides
from distbench.cli.output import complain, note
from distbench.cli.progress import observer
from distbench.record.store import new_run_id
from distbench.run import prepare as build
from distbench.suite import load
from distbench.temporary import temporary_folder
from distbench.units import duration_text


def prepare(
    suite: Suite,
    set_: Set = [],
    only: Only = [],
    world_sizes: WorldSizes = "",
    device: Device = "",
    quiet: Quiet = False,
) -> int:
    """Build in advance what a suite needs (C++ ops)."""
    loaded = load(suite, overrides(set_, only, world_sizes, device))
    planned = plan.make(loaded)
    began = time.monotonic()
    with observer(quiet=quiet) as watcher, temporary_folder() as folder:
        failed = build(loaded, planned, folder, new_run_id(), watcher)
    for item, reason in failed.items():
        complain(f"{item}: {reason}")
    for case in planned.cases:
        if case.problem and not quiet:
            note(f"{case.case.name}: unsupported: {case.problem}")
    if not (failed or quiet):
        note(f"ready in {duration_text(time.monotonic() - began)}; C++ libraries: {env.cache_folder()}")
    return 1 if failed else 0
