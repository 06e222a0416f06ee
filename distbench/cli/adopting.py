"""``distbench adopt``: a measured case as the configuration that others' training scripts take."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.analysis.text import listed, one_line
from distbench.cli.printing import note, say, say_json
from distbench.cli.showing import find_run
from distbench.errors import InfrastructureError, UsageError, did_you_mean
from distbench.record import Record, Status, of_kind

if TYPE_CHECKING:
    from distbench.adopt import Adopted
    from distbench.analysis.summary import CaseSummary


def adopt_case(
    name: str, wanted: str, format_: str, *, into: Path | None, force: bool, out: Path, as_json: bool
) -> int:
    """Write the case *wanted* of a run in a format; to stdout, or as files into the folder *into*.

    Raises:
        UsageError: there is no such run, case or format, the case has nothing to adopt or is another
            training than its reference, the format can't say it, or a file stands there already.
        InfrastructureError: a file can't be written.
    """
    from distbench.adopt import FORMATS, adopt
    from distbench.analysis.summary import summarise

    if format_ not in FORMATS:
        raise UsageError(f"--as = {format_!r}: {did_you_mean(format_, FORMATS)}")
    run = find_run(name, out)
    records = list(run.records())
    cases = summarise(run.info(), records)
    row = _find(cases, wanted)
    warnings = _check(row, force=force) + _unfair(row, cases)
    adopted = adopt(format_, row.case, _effective(row, records))
    for warning in warnings:
        note(f"distbench: warning: {warning}")
    if into is not None:
        _write(adopted, into)
    elif as_json:
        say_json(_to_json(adopted, warnings))
    else:
        _print(adopted)
    if not as_json:
        _tell(adopted, in_files=into is None)
    return 0


def _find(cases: Sequence[CaseSummary], wanted: str) -> CaseSummary:
    """Return the case that *wanted* names: its name, its label where one case has it, or its id.

    Raises:
        UsageError: there is none, or more than one.
    """
    for found in (
        [row for row in cases if row.case.name == wanted],
        [row for row in cases if row.case.label == wanted],
        [row for row in cases if len(wanted) >= _SHORTEST_ID and row.case.id.startswith(wanted)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            names = listed([f"{one_line(row.case.name, 100)} ({row.case.id})" for row in found], 20)
            raise UsageError(f"CASE = {one_line(wanted, 100)!r}: more than one case: {names}")
    known = [row.case.name for row in cases]
    near = difflib.get_close_matches(wanted, [*known, *{row.case.label for row in cases}], n=5, cutoff=0.5)
    hint = f"near it: {listed([one_line(each, 100) for each in near])}" if near else "none is near it"
    few = listed([one_line(each, 100) for each in known], 10) or "none"
    raise UsageError(f"CASE = {one_line(wanted, 100)!r}: no such case; {hint}. The run has: {few}")


_SHORTEST_ID = 4


def _check(row: CaseSummary, *, force: bool) -> list[str]:
    """Return what to be warned of before adopting a case.

    Raises:
        UsageError: it was not trained, so nobody knows that it can be; or it is another training.
    """
    name = one_line(row.case.name, 100)
    if row.differs and not force:
        raise UsageError(
            f"{name}: differs from its reference: it is another training; see distbench show --view "
            "equivalence, or adopt it all the same with --force"
        )
    if not row.measured and row.verdict is None:
        raise UsageError(f"{name}: {row.status}: {one_line(row.reason)}; there is nothing to adopt")
    if not row.measured and row.status not in _UNTRIED:
        raise UsageError(f"{name}: {row.status}: {one_line(row.reason)}; it can't be trained as it stands")
    found = []
    if row.differs:
        found.append(f"{name}: differs from its reference: it is another training (--force)")
    if not row.measured:
        found.append(f"{name}: checked, but not measured ({one_line(row.reason)})")
    if row.degraded:
        found.append(f"{name}: measured on a disturbed machine only: {one_line(row.degraded)}")
    if row.measured and row.failed:
        found.append(
            f"{name}: {row.failed} of {row.trials + row.failed} trials failed: {one_line(row.reason)}"
        )
    return found


_UNTRIED = ("pending", "unmeasured")


def _unfair(row: CaseSummary, cases: Sequence[CaseSummary]) -> list[str]:
    """Return in what the live engine did other work than its reference, or may have."""
    from distbench.analysis.parity import findings

    name = one_line(row.case.name, 100)
    return [
        f"{name}: not {'' if each.is_known else 'known to be '}the same work as its reference: {each}"
        for each in findings(cases).get(row.case.id, [])
    ]


def _effective(row: CaseSummary, records: Sequence[Record]) -> dict[str, Any]:
    """Return what the live engine told, of a trial that counts or else of the equivalence check."""
    if row.detail is not None:
        return row.detail.effective
    checked = of_kind(records, "check")
    mine = [
        record.effective
        for record in checked
        if record.job.options.get("of") == row.case.id and record.status is Status.MEASURED
    ]
    return mine[0] if mine else {}


def _write(adopted: Adopted, into: Path) -> None:
    from distbench.files import write_whole

    if there := [name for name in adopted.files if (into / name).exists()]:
        raise UsageError(f"--into = {str(into)!r}: already there: {', '.join(there)}; nothing was written")
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name, text in adopted.files.items():
            write_whole(into / name, text)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--into = {str(into)!r}: not a folder") from error
    except OSError as error:
        raise InfrastructureError(f"{into}: can't be written: {error}") from error
    for each in adopted.files:
        say(str(into / each))


def _print(adopted: Adopted) -> None:
    """Print the files; a heading parts them where there is more than one."""
    for name, text in adopted.files.items():
        if len(adopted.files) > 1:
            say(f"# ---- {name} ----")
        say(text.rstrip("\n"))


def _tell(adopted: Adopted, *, in_files: bool) -> None:
    """Print what to do on stderr; *in_files*: not what stands as comments in what was printed."""
    if not (in_files and any(adopted.launch in text for text in adopted.files.values())):
        note(f"launch: {adopted.launch}")
        for each in adopted.notes:
            note(f"note: {each}")
    for each in adopted.differs:
        note(f"differs: {each}")


def _to_json(adopted: Adopted, warnings: Sequence[str]) -> dict[str, Any]:
    return {
        "files": adopted.files,
        "launch": adopted.launch,
        "notes": list(adopted.notes),
        "differs": list(adopted.differs),
        "warnings": list(warnings),
    }
