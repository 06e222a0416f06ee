"""Runs as commands read them: what is damaged is left out of the numbers, and named on stderr."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.price import with_price
from distbench.analysis.run import AnalysedRun
from distbench.cli.options import parsed
from distbench.cli.output import note
from distbench.core.text import one_line
from distbench.record.reading import Damaged, damage_text
from distbench.record.run_folder import Run


def analysed(run: Run) -> AnalysedRun:
    """*run*, analysed; what of it is damaged is named on stderr.

    Raises:
        UsageError: this is not the folder of a run.
        RecordError: neither ``run.json`` nor a record can be read.
    """
    made = AnalysedRun.read(run)
    warn_of(made.damaged, run.folder)
    return made


def priced(run: AnalysedRun, price: str) -> AnalysedRun:
    """*run* with the *price* of a device and hour from the command line; empty: that of its suite, if any.

    Raises:
        UsageError: it is no amount with a currency.
    """
    suite = parsed("--price", price, partial(with_price, run.info.suite))
    return run if suite is None else replace(run, info=replace(run.info, suite=suite))


def warn_of(damaged: Sequence[Damaged], folder: Path) -> None:
    """Name trials of the run in *folder* that can't be read on stderr, if there are any."""
    for line in damage(damaged, folder):
        note(f"distbench: warning: {line}")


def damage(damaged: Sequence[Damaged], folder: Path) -> list[str]:
    """A line on trials of the run in *folder* that can't be read; none if all can."""
    text = damage_text(damaged)
    return [f"{one_line(text)}; see distbench check {shlex.quote(str(folder))}"] if text else []


def damage_json(*runs: AnalysedRun) -> list[dict[str, str]]:
    """Trials of *runs* that can't be read, as ``--json`` lists them."""
    return [{"run_id": run.info.run_id, **trial.to_json()} for run in runs for trial in run.damaged]
