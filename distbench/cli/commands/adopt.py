"""``distbench adopt``: a case as configuration for other training scripts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from distbench.adopt import FORMATS, Adopted
from distbench.adopt import adopt as translate
from distbench.adopt.caveats import caveats
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import AnalysedRun
from distbench.cli import options
from distbench.cli.options import argument, flag, option
from distbench.cli.output import note, say, say_json
from distbench.cli.readers import reads_runs
from distbench.cli.reading import damage
from distbench.core.errors import UsageError
from distbench.core.text import listed, one_line
from distbench.record import Record, Status, catalog, of_kind
from distbench.system.files import write_whole, writing

_SHORTEST_ID = 4
_MOST_PARAMETERS = 1e15
_UNTRIED = ("pending", "damaged", "unmeasured")


@reads_runs
def adopt(
    name: options.RunName,
    wanted: Annotated[str, argument("CASE", "Case name, label or ID.")],
    format_: Annotated[
        str,
        option(
            "--as", "FORMAT", "deepspeed, accelerate, transformers, torch, torchtitan or torchtitan-toml."
        ),
    ],
    into: Annotated[Path | None, option("--into", "DIR", "Write the files to DIR.")] = None,
    parameters: Annotated[
        str,
        option("--for-parameters", "N", "Set bucket sizes and thresholds for a model of N parameters: 7e9."),
    ] = "",
    with_script: Annotated[
        bool, flag("--skeleton", text="With --as torch: add a train.py that runs as it stands.")
    ] = False,
    force: Annotated[
        bool, flag("--force", text="Export even if the case is not equivalent to its reference.")
    ] = False,
    out: options.Out = options.REPORTS,
    as_json: options.Json = False,
) -> int:
    """Export a case as configuration for another tool."""
    options.check_word("--as", format_, FORMATS)
    if as_json and into is not None:
        raise UsageError("adopt: --json prints the files, and --into DIR writes them; use one of them")
    count = options.parsed("--for-parameters", parameters, _count)
    stored = catalog.find(name, out)
    run = AnalysedRun.read(stored)
    row = _find(run.cases, wanted)
    _check(row, force=force)
    about = [f"{one_line(row.case.name, 100)}: {caveat}" for caveat in caveats(row, run)]
    warnings = about + damage(run.damaged, stored.folder)
    record = _telling(row, run.records)
    effective, nodes = (record.effective, len(record.nodes) or 1) if record else ({}, 1)
    adopted = translate(format_, row.case, effective, parameters=count, with_script=with_script, nodes=nodes)
    if not (into or as_json) and len(adopted.files) > 1:
        raise UsageError(f"adopt: {', '.join(adopted.files)} don't fit on one output; add --into DIR")
    for warning in warnings:
        note(f"distbench: warning: {warning}")
    if into is not None:
        _write(adopted, into)
    elif as_json:
        say_json({**dataclasses.asdict(adopted), "warnings": warnings})
    else:
        say(*(text.rstrip("\n") for text in adopted.files.values()))
    if not as_json:
        _print_notes(adopted, in_files=into is None)
    return 0


def _count(text: str) -> float:
    """Number of parameters in *text*.

    Raises:
        ValueError: it is no number from 1 on.
    """
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    if not 1 <= count <= _MOST_PARAMETERS:
        raise ValueError("expected a number of parameters, such as 7e9 or 350000000")
    return count


def _find(cases: Sequence[CaseSummary], wanted: str) -> CaseSummary:
    """Case whose name, label or ID is *wanted*, or whose name begins so.

    Raises:
        UsageError: no case matches, or more than one.
    """
    for matches in (
        [row for row in cases if row.case.name == wanted],
        [row for row in cases if row.case.label == wanted],
        [row for row in cases if len(wanted) >= _SHORTEST_ID and row.case.id.startswith(wanted)],
        [row for row in cases if wanted and row.case.name.startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = listed([f"{one_line(row.case.name, 100)} ({row.case.id})" for row in matches], 20)
            raise UsageError(f"CASE = {one_line(wanted, 100)!r}: matches more than one case: {names}")
    known = [row.case.name for row in cases]
    near = difflib.get_close_matches(wanted, [*known, *{row.case.label for row in cases}], n=3, cutoff=0.5)
    hint = f"did you mean {listed([one_line(name, 100) for name in near])}? " if near else ""
    available = listed([one_line(name, 100) for name in known], 10) or "none"
    raise UsageError(f"CASE = {one_line(wanted, 100)!r}: no such case; {hint}available: {available}")


def _check(row: CaseSummary, *, force: bool) -> None:
    """Check that a case can be exported.

    Raises:
        UsageError: it was never trained successfully, or it is not equivalent to its reference.
    """
    name = one_line(row.case.name, 100)
    if row.differs and not force:
        raise UsageError(
            f"{name}: not equivalent to its reference; see distbench show --view equivalence, "
            "or export it anyway with --force"
        )
    if not row.measured and not row.verdicts:
        raise UsageError(f"{name}: {row.status}: {one_line(row.reason)}; there is nothing to export")
    if not row.measured and row.status not in _UNTRIED:
        raise UsageError(f"{name}: {row.status}: {one_line(row.reason)}; it can't be trained as configured")


def _telling(row: CaseSummary, records: Sequence[Record]) -> Record | None:
    """Record with the settings of the live engine: of a valid trial, or else of the equivalence check."""
    if row.detail is not None:
        return row.detail
    checked = (
        record
        for record in of_kind(records, "check")
        if record.job.options.of == row.case.id and record.status is Status.MEASURED
    )
    return next(checked, None)


def _write(adopted: Adopted, into: Path) -> None:
    if existing := [name for name in adopted.files if (into / name).exists()]:
        raise UsageError(f"--into = {str(into)!r}: {', '.join(existing)} exist; nothing was written")
    with writing(into):
        try:
            into.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"--into = {str(into)!r}: not a folder") from error
        for name, text in adopted.files.items():
            write_whole(into / name, text)
    for name in adopted.files:
        say(str(into / name))


def _print_notes(adopted: Adopted, *, in_files: bool) -> None:
    """Print instructions on stderr; with *in_files*, not those that the printed files have as comments."""
    if not (in_files and any(adopted.launch in text for text in adopted.files.values())):
        note(f"launch: {adopted.launch}")
        for line in adopted.notes:
            note(f"note: {line}")
    for difference in adopted.differs:
        note(f"differs: {difference}")
