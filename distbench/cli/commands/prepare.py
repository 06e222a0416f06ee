"""``distbench prepare``: build in advance what a suite, or an engine, needs once."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distbench.cli.options import (
    DeviceOption,
    OnlyOption,
    QuietOption,
    SetOption,
    WorldSizesOption,
    argument,
    make_overrides,
    option,
)
from distbench.cli.output import print_error, print_note
from distbench.core.errors import UsageError
from distbench.core.units import format_count, format_duration

if TYPE_CHECKING:
    from distbench.core.machine import Machine
    from distbench.suite import Suite


def prepare(
    suite: Annotated[Path | None, argument("[SUITE]", "Suite file (YAML).")] = None,
    engine: Annotated[
        list[str],
        option("--engine", "NAME", "Build this engine, such as horovod, without a suite; may be repeated."),
    ] = [],
    set_: SetOption = [],
    only: OnlyOption = [],
    world_sizes: WorldSizesOption = "",
    device: DeviceOption = "",
    quiet: QuietOption = False,
) -> int:
    """Build in advance what a suite needs (C++ ops), or an engine."""
    from distbench.suite import load_suite

    if not engine:
        if suite is None:
            raise UsageError("prepare: give a suite file, or --engine NAME")
        return _prepare(load_suite(suite, make_overrides(set_, only, world_sizes, device)), quiet=quiet)
    if suite or set_ or only or world_sizes:
        raise UsageError("--engine: leave out the suite and its options; a suite names its own engines")
    suites = [_suite_of_engine(name, device) for name in engine]
    return max(_prepare(each, quiet=quiet, is_required=True) for each in suites)


def _prepare(suite: Suite, *, quiet: bool, is_required: bool = False) -> int:
    """Build what *suite* needs; return the exit code.

    *is_required*: a case that can't run here is an error.
    """
    from distbench.api.progress import observe_progress
    from distbench.plan import make_plan
    from distbench.record.run_folder import new_run_id
    from distbench.run.builds import build_all
    from distbench.system.cache import cache_folder
    from distbench.system.temporary import temporary_folder

    planned = make_plan(suite, _machine(suite))
    began = time.monotonic()
    with observe_progress(quiet=quiet) as watcher, temporary_folder() as folder:
        failed = build_all(suite, planned, folder, new_run_id(), watcher)
    for item, failure in failed.items():
        print_error(f"{item}: {failure.reason}")
    unsupported = [each for each in planned.cases if each.problem]
    for left in unsupported:
        if is_required:
            print_error(left.problem or "")
        elif not quiet:
            print_note(f"{left.case.name}: unsupported: {left.problem}")
    if failed or (is_required and unsupported):
        return 1
    if not quiet:
        print_note(f"ready in {format_duration(time.monotonic() - began)}; C++ libraries: {cache_folder()}")
    return 0


def _suite_of_engine(name: str, device: str) -> Suite:
    """Suite of one small case of the engine *name*, by default on a CPU.

    Raises:
        UsageError: there is no such engine, or one that builds nothing.
    """
    from distbench.core import registry
    from distbench.engines.base import Framework
    from distbench.suite import parse_suite_text
    from distbench.system.machine import install_hint

    framework: type[Framework] = registry.load_plugin("engines", name)
    if not framework.is_built():
        built = [
            each
            for each in registry.plugin_names("engines")
            if registry.load_plugin("engines", each).is_built()
        ]
        how = f"; install it {install_hint(framework.extra)}" if framework.extra else ""
        raise UsageError(
            f"--engine = {name!r} has nothing to build{how}; engines that are built: {', '.join(built)}"
        )
    strategy = framework.strategies[0] if framework.strategies else "ddp"
    return parse_suite_text(
        "workload: {mlp: {hidden: 8, depth: 1}}\nbatch: {global_batch_size: 1}\nworld_sizes: [1]\n"
        f"strategies: [{strategy}]\nengine: {name}\ndevice: {device or 'cpu'}\nmetrics: [steptime]\n"
    )


def _machine(suite: Suite) -> Machine:
    """Machine on which the cases of *suite* will run: a login node or an image build has no GPU for them."""
    from distbench.plan import launcher_machine

    machine = launcher_machine(suite)
    if machine.device == "cpu" or machine.devices:
        return machine
    asked = max(suite.world_sizes or (1,))
    print_note(f"no GPU here; preparing for {format_count(asked, 'GPU')} on another machine")
    return dataclasses.replace(machine, devices=asked)
