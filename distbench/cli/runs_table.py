"""Table of the runs in a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from distbench.core.errors import DistbenchError
from distbench.core.job import job_kinds
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count
from distbench.record import catalog
from distbench.record.record_reader import untrusted_records
from distbench.record.run_folder import Run
from distbench.report.recommendation import read_recommendation
from distbench.tables.table import CellMapping, Field, Table, TableCell, TableRow

_CAPTION = (
    "Newest first. run: name to use for RUN in other commands; pick: recommendation without special "
    "requirements, as stored with the report."
)
_FIELDS = (
    Field("run", "run", "Start of its name, or its folder below the given one.", type="varchar"),
    Field("folder", "", "Its folder.", type="varchar"),
    Field("created", "date (UTC)", "When it began.", type="varchar"),
    Field("suite", "suite", "Name of its suite.", type="varchar"),
    Field("state", "state", "running, finished, interrupted, waiting or unreadable.", type="varchar"),
    Field("cases", "cases", "Cases of its suite.", type="bigint"),
    Field("trials", "", "Trials that have a record.", type="bigint"),
    Field("bytes", "size", "Of all files on disk.", "B"),
    Field("pick", "pick", "Case that is recommended without special requirements.", type="varchar"),
    Field("headline", "", "The recommendation in a sentence.", type="varchar"),
    Field("problem", "", "Reason why it can't be read.", type="varchar"),
)


def runs_table(folder: Path) -> Table:
    """Table of the runs in *folder* and below, newest first."""
    # before any run is read: a plug-in that can't be imported is no fault of the runs
    job_kinds()
    rows = [row for run in catalog.runs_below(folder) if (row := _row(run, folder))]
    rows += [_waiting_row(run, folder) for run in catalog.submitted_runs(folder)]
    rows.sort(key=lambda row: str(row.value("created")), reverse=True)
    title = f"{format_count(len(rows), 'run')} in {folder}"
    return Table(title, _CAPTION, _FIELDS, tuple(rows), tuple(_notes(rows)))


def _row(run: Run, folder: Path) -> TableRow | None:
    """Row of one run; of one that can't be read, only the facts from its folder; None if that is gone."""
    place: CellMapping = {"run": _name(run, folder), "folder": str(run.folder), "bytes": _size(run.folder)}
    try:
        with untrusted_records(str(run.folder)):
            info, found = run.info(), run.recorded_trials()
            answer, missing = read_recommendation(run.folder, found)
    except DistbenchError as error:
        if not run.folder.exists():
            return None
        return TableRow(
            {**place, "state": "unreadable", "problem": one_line(str(error).replace(f"{run.folder}/", ""))}
        )
    pick = TableCell(None, reason=missing)
    cells: CellMapping = (
        {"pick": answer.pick or "none", "headline": answer.headline} if answer else {"pick": pick}
    )
    began = TableCell(info.created, one_line(info.created, 20)[:16].replace("T", " "))
    about: CellMapping = {
        "created": began,
        "suite": info.suite_name,
        "state": info.state,
        "cases": len(info.cases),
    }
    return TableRow({**place, **about, "trials": len(found), **cells})


def _waiting_row(run: Run, folder: Path) -> TableRow:
    """Row of a run that was submitted to an engine and has not begun."""
    place: CellMapping = {"run": _name(run, folder), "folder": str(run.folder), "bytes": _size(run.folder)}
    return TableRow({**place, "state": "waiting", "pick": TableCell(None, reason="it has not started")})


def _name(run: Run, folder: Path) -> str:
    """Name of *run* for other commands: its id if it lies in *folder*, or else its path from there."""
    below = run.folder.resolve().relative_to(folder.resolve())
    return below.name.rpartition("-")[2] if len(below.parts) == 1 else str(below)


def _size(folder: Path) -> int:
    """Bytes of all files in *folder*; links are not followed, and files that disappear count as 0."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                total += _size(Path(entry.path)) if is_folder else entry.stat(follow_symlinks=False).st_size
    return total


def _notes(rows: list[TableRow]) -> Iterator[str]:
    for row in rows:
        if problem := row.value("problem"):
            yield f"{row.value('run')}: can't be read: {problem}"


def missing_picks(rows: Sequence[TableRow]) -> list[str]:
    """Hint on *rows* without a pick; the command is on a line of its own, to be copied."""
    lacking = [row for row in rows if row.value("state") == "finished" and not row.value("pick")]
    if not lacking:
        return []
    names = join_limited([str(row.value("run")) for row in lacking])
    again = f"distbench report {shlex.quote(str(lacking[0].value('folder')))}"
    return ["", f"No recommendation is stored for the current trials of {names}. To store one:", again]
