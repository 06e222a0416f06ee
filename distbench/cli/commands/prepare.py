"""``distbench prepare``: build in advance what a suite needs once."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from distbench.cli.options import (
    DeviceOption,
    OnlyOption,
    QuietOption,
    SetOption,
    SuiteArgument,
    WorldSizesOption,
    make_overrides,
)
from distbench.cli.output import print_error, print_note
from distbench.core.units import format_count, format_duration

if TYPE_CHECKING:
    from distbench.core.machine import Machine
    from distbench.suite import Suite


def prepare(
    suite: SuiteArgument,
    set_: SetOption = [],
    only: OnlyOption = [],
    world_sizes: WorldSizesOption = "",
    device: DeviceOption = "",
    quiet: QuietOption = False,
) -> int:
    """Build in advance what a suite needs (C++ ops)."""
    from distbench.api.progress import observe_progress
    from distbench.plan import make_plan
    from distbench.record.run_folder import new_run_id
    from distbench.run.builds import build_all
    from distbench.suite import load_suite
    from distbench.system.cache import cache_folder
    from distbench.system.temporary import temporary_folder

    loaded = load_suite(suite, make_overrides(set_, only, world_sizes, device))
    planned = make_plan(loaded, _machine(loaded))
    began = time.monotonic()
    with observe_progress(quiet=quiet) as watcher, temporary_folder() as folder:
        failed = build_all(loaded, planned, folder, new_run_id(), watcher)
    for item, failure in failed.items():
        print_error(f"{item}: {failure.reason}")
    for case in planned.cases:
        if case.problem and not quiet:
            print_note(f"{case.case.name}: unsupported: {case.problem}")
    if not (failed or quiet):
        print_note(f"ready in {format_duration(time.monotonic() - began)}; C++ libraries: {cache_folder()}")
    return 1 if failed else 0


def _machine(suite: Suite) -> Machine:
    """Machine on which the cases of *suite* will run: a login node or an image build has no GPU for them."""
    from distbench.plan import launcher_machine

    machine = launcher_machine(suite)
    if machine.device == "cpu" or machine.devices:
        return machine
    asked = max(suite.world_sizes or (1,))
    print_note(f"no GPU here; preparing for {format_count(asked, 'GPU')} on another machine")
    return dataclasses.replace(machine, devices=asked)
