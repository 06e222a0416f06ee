"""``distbench prepare``: build in advance what a suite needs once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from distbench import plan
from distbench.cli.options import Device, Only, Quiet, Set, Suite, WorldSizes, overrides
from distbench.cli.output import complain
from distbench.cli.progress import observer
from distbench.record.store import new_run_id
from distbench.run import prepare as build
from distbench.suite import load


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
    with observer(quiet=quiet) as watcher, tempfile.TemporaryDirectory(prefix="distbench-") as folder:
        failed = build(loaded, planned, Path(folder), new_run_id(), watcher)
    for case, reason in failed.items():
        complain(f"{case}: {reason}")
    return 1 if failed else 0
