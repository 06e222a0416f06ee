"""Stored runs for commands that read them: warnings about damaged trials, and the price of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.cost import with_price
from distbench.analysis.run import RunAnalysis
from distbench.api.stored_runs import damage_lines
from distbench.cli.options import parse_option
from distbench.cli.output import print_warning
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import Run


def load_run(run: Run) -> RunAnalysis:
    """Load and analyse *run*; warn about damaged trials on stderr.

    Raises:
        UsageError: this is not the folder of a run.
        RecordError: neither ``run.json`` nor a record can be read.
    """
    made = RunAnalysis.read(run)
    warn_about_damage(made.damaged, run.folder)
    return made


def apply_price(run: RunAnalysis, price: str) -> RunAnalysis:
    """Apply the *price* per device and hour from the command line to *run*; empty: that of its suite, if any.

    Raises:
        UsageError: it is no amount with a currency.
    """
    suite = parse_option("--price", price, partial(with_price, run.info.suite))
    return run if suite is None else replace(run, info=replace(run.info, suite=suite))


def warn_about_damage(damaged: Sequence[DamagedTrial], folder: Path) -> None:
    """Warn on stderr about trials of the run in *folder* that can't be read, if there are any."""
    for line in damage_lines(damaged, folder):
        print_warning(line)
