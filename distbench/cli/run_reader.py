"""Load runs for commands; skip damaged trials and warn about them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.cost import with_price
from distbench.analysis.run import RunAnalysis
from distbench.cli.options import parse_option
from distbench.cli.output import print_note
from distbench.core.text import one_line
from distbench.record.record_reader import DamagedTrial, damage_summary
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
        print_note(f"distbench: warning: {line}")


def damage_lines(damaged: Sequence[DamagedTrial], folder: Path) -> list[str]:
    """A line on trials of the run in *folder* that can't be read; empty if all can."""
    text = damage_summary(damaged)
    return [f"{one_line(text)}; see distbench check {shlex.quote(str(folder))}"] if text else []


def damage_json(*runs: RunAnalysis) -> list[dict[str, str]]:
    """Trials of *runs* that can't be read, as ``--json`` lists them."""
    return [{"run_id": run.info.run_id, **trial.to_json()} for run in runs for trial in run.damaged]
