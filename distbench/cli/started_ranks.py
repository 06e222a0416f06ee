"""Processes that another launcher has started, as torchrun does: they join one run, or are refused."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from distbench.cli.output import print_note
from distbench.core import registry
from distbench.launchers.base import Launcher
from distbench.plan import STARTED_ONCE, check_launcher_options, check_started_once
from distbench.suite import Suite
from distbench.system.rank_variables import started_rank


def join_started_ranks(context: typer.Context, suite: Suite, out: Path) -> None:
    """Have this process control the runs of *suite* in the folder *out*, until the command ends.

    Raises:
        typer.Exit: it has served the process that does.
        SuiteError: the launcher can't start anything.
        UsageError: the launcher starts its own ranks, and this is one of several processes.
        InfrastructureError: the processes can't find or keep each other.
    """
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    check_started_once(launcher)
    if not launcher.joins_started_ranks:
        if placed := started_rank(os.environ):
            print_note(f"warning: {placed.variables}: {STARTED_ONCE}")
        return
    served: int | None = context.with_resource(check_launcher_options(suite).join(out))
    if served is not None:
        raise typer.Exit(served)
