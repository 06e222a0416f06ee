"""``distbench runs``: the runs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import DEFAULT_RUNS_FOLDER, JsonOption, argument
from distbench.cli.output import print_json, print_text, terminal_width
from distbench.core.errors import UsageError


@reads_runs
def runs(
    folder: Annotated[
        Path, argument("[FOLDER]", "Folder that holds the runs (default: reports).")
    ] = DEFAULT_RUNS_FOLDER,
    as_json: JsonOption = False,
) -> int:
    """List the runs in a folder."""
    from distbench.cli.runs_table import missing_picks, runs_table

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; runs are stored where run --out says (default: reports)")
    table = runs_table(folder)
    if as_json:
        print_json(table.to_json())
    else:
        for line in (table.to_text(terminal_width()), *missing_picks(table.rows)):
            print_text(line)
    return 0
