"""``distbench adopt``: a case as configuration for other training scripts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distbench.cli import options
from distbench.cli.decorators import reads_runs
from distbench.cli.options import argument, flag, option
from distbench.cli.output import print_json, print_note, print_text, print_warning
from distbench.core.errors import UsageError
from distbench.core.text import join_limited, one_line

if TYPE_CHECKING:
    from distbench.adopt import ExportedFiles
    from distbench.analysis.case_summary import CaseSummary
    from distbench.record import Record

_MIN_ID_PREFIX = 4
_MAX_PARAMETERS = 1e15
_UNTRIED_STATUSES = ("pending", "damaged", "unmeasured")


@reads_runs
def adopt(
    name: options.RunArgument,
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
        bool, flag("--skeleton", text="With --as torch: add a train.py that runs without changes.")
    ] = False,
    force: Annotated[
        bool, flag("--force", text="Export even if the case is not equivalent to its reference.")
    ] = False,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
) -> int:
    """Export a case as configuration for another tool."""
    from distbench.adopt import FORMATS, export_case, export_caveats
    from distbench.analysis.run import RunAnalysis
    from distbench.api.stored_runs import damage_lines
    from distbench.record import catalog

    options.check_choice("--as", format_, FORMATS)
    if as_json and into is not None:
        raise UsageError("adopt: --json prints the files, and --into DIR writes them; use one of them")
    count = options.parse_option("--for-parameters", parameters, _parse_parameters)
    stored = catalog.find_run(name, out)
    run = RunAnalysis.read(stored)
    if run.info.is_script:
        raise UsageError(f"adopt {name}: it measured a script, whose configuration is its own already")
    if run.info.is_trace:
        raise UsageError(f"adopt {name}: it keeps traces, which do not tell a configuration")
    row = _find_case(run.cases, wanted)
    _check_exportable(row, force=force)
    about = [f"{one_line(row.case.name, 100)}: {caveat}" for caveat in export_caveats(row, run)]
    warnings = about + damage_lines(run.damaged, stored.folder)
    record = _record_with_settings(row, run.records)
    effective, nodes = (record.effective, len(record.nodes) or 1) if record else ({}, 1)
    adopted = export_case(
        format_, row.case, effective, parameters=count, with_script=with_script, nodes=nodes
    )
    if not (into or as_json) and len(adopted.files) > 1:
        raise UsageError(f"adopt: {', '.join(adopted.files)} don't fit on one output; add --into DIR")
    for warning in warnings:
        print_warning(warning)
    if into is not None:
        _write_files(adopted, into)
    elif as_json:
        plain = dataclasses.asdict(adopted)
        differs = plain.pop("differences")
        print_json({**plain, "differs": differs, "warnings": warnings})
    else:
        print_text(*(text.rstrip("\n") for text in adopted.files.values()))
    if not as_json:
        _print_notes(adopted, in_files=into is None)
    return 0


def _parse_parameters(text: str) -> float:
    """Number of parameters in *text*.

    Raises:
        ValueError: it is not a number of at least 1.
    """
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    if not 1 <= count <= _MAX_PARAMETERS:
        raise ValueError("expected a number of parameters, such as 7e9 or 350000000")
    return count


def _find_case(cases: Sequence[CaseSummary], wanted: str) -> CaseSummary:
    """Find the case whose name, label or ID is *wanted*, or whose name begins with it.

    Raises:
        UsageError: no case matches, or more than one.
    """
    for matches in (
        [row for row in cases if row.case.name == wanted],
        [row for row in cases if row.case.label == wanted],
        [row for row in cases if len(wanted) >= _MIN_ID_PREFIX and row.case.id.startswith(wanted)],
        [row for row in cases if wanted and row.case.name.startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = join_limited([f"{one_line(row.case.name, 100)} ({row.case.id})" for row in matches], 20)
            raise UsageError(f"CASE = {one_line(wanted, 100)!r}: matches more than one case: {names}")
    known = [row.case.name for row in cases]
    near = difflib.get_close_matches(wanted, [*known, *{row.case.label for row in cases}], n=3, cutoff=0.5)
    hint = f"did you mean {join_limited([one_line(name, 100) for name in near])}? " if near else ""
    available = join_limited([one_line(name, 100) for name in known], 10) or "none"
    raise UsageError(f"CASE = {one_line(wanted, 100)!r}: no such case; {hint}available: {available}")


def _check_exportable(row: CaseSummary, *, force: bool) -> None:
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
    if not row.measured and row.status not in _UNTRIED_STATUSES:
        raise UsageError(f"{name}: {row.status}: {one_line(row.reason)}; it can't be trained as configured")


def _record_with_settings(row: CaseSummary, records: Sequence[Record]) -> Record | None:
    """Record with the settings of the live engine: of a valid trial, or else of the equivalence check."""
    from distbench.record import Status, records_of_kind

    if row.representative_trial is not None:
        return row.representative_trial
    checked = (
        record
        for record in records_of_kind(records, "check")
        if record.job.options.of == row.case.id and record.status is Status.MEASURED
    )
    return next(checked, None)


def _write_files(adopted: ExportedFiles, into: Path) -> None:
    from distbench.system.files import infrastructure_errors, write_atomic

    if existing := [name for name in adopted.files if (into / name).exists()]:
        raise UsageError(f"--into = {str(into)!r}: {', '.join(existing)} exist; nothing was written")
    with infrastructure_errors(into):
        try:
            into.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"--into = {str(into)!r}: not a folder") from error
        for name, text in adopted.files.items():
            write_atomic(into / name, text)
    for name in adopted.files:
        print_text(str(into / name))


def _print_notes(adopted: ExportedFiles, *, in_files: bool) -> None:
    """Print instructions on stderr; with *in_files*, without those in comments of the printed files."""
    if not (in_files and any(adopted.launch in text for text in adopted.files.values())):
        print_note(f"launch: {adopted.launch}")
        for line in adopted.notes:
            print_note(f"note: {line}")
    for difference in adopted.differences:
        print_note(f"differs: {difference}")
