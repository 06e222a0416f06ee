"""``distbench prepare``: build in advance what a suite needs once."""

from __future__ import annotations

import dataclasses
import time

from distbench import plan
from distbench.cli.options import Device, Only, Quiet, Set, Suite, WorldSizes, overrides
from distbench.cli.output import complain, note
from distbench.cli.progress import observer
from distbench.core.machine import Machine
from distbench.core.units import count_text, duration_text
from distbench.record.run_folder import new_run_id
from distbench.run.builds import prepare as build
from distbench.suite import Suite as Loaded
from distbench.suite import load
from distbench.system.machine import cache_folder
from distbench.system.temporary import temporary_folder


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
    planned = plan.make(loaded, _machine(loaded))
    began = time.monotonic()
    with observer(quiet=quiet) as watcher, temporary_folder() as folder:
        failed = build(loaded, planned, folder, new_run_id(), watcher)
    for item, failure in failed.items():
        complain(f"{item}: {failure.reason}")
    for case in planned.cases:
        if case.problem and not quiet:
            note(f"{case.case.name}: unsupported: {case.problem}")
    if not (failed or quiet):
        note(f"ready in {duration_text(time.monotonic() - began)}; C++ libraries: {cache_folder()}")
    return 1 if failed else 0


def _machine(suite: Loaded) -> Machine:
    """Where the cases of *suite* will run: a login node, or who makes an image, has no GPU for them."""
    machine = plan.machine_of(suite)
    if machine.device == "cpu" or machine.devices:
        return machine
    asked = max(suite.world_sizes or (1,))
    note(f"there is no GPU here: this prepares for {count_text(asked, 'GPU')} elsewhere")
    return dataclasses.replace(machine, devices=asked)
