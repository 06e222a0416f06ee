"""What pytest says of a case and of a run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distbench.analysis.equivalence import NOT_CHECKED
from distbench.analysis.summary import UNMEASURED, CaseSummary
from distbench.analysis.text import one_line, plain
from distbench.analysis.verdicts import sentence
from distbench.pytest_plugin.running import Made
from distbench.record import Record, Status, round_text
from distbench.report import terminal
from distbench.store import Run
from distbench.trial import log_file

_MOST_LINES = 20
_PROPERTIES = ("step_s", "tokens_per_s", "memory_peak", "comm_bytes")


def failure_text(made: Made) -> str:
    """Return why the test of a case fails, the reason first; empty if it passes."""
    failed = [record for record in made.records if record.status.is_failure]
    found = [_failed(made.run, record) for record in failed[:1]]
    if len(failed) > 1:
        found.append(f"{len(failed)} of its {len(made.records)} trials failed")
    if made.row.differs and made.row.verdict:
        found.append(sentence(made.row.verdict))
    return plain("\n".join([*found, *made.alarms]))


def untold(made: Made) -> str:
    """Return why nothing can be said of a case that has not failed; empty if something can."""
    row = made.row
    if row.status == Status.UNSUPPORTED:
        return one_line(row.reason)
    checked_in_vain = row.verdict is not None and row.verdict.word == NOT_CHECKED
    return sentence(row.verdict) if row.status == UNMEASURED and row.verdict and checked_in_vain else ""


def numbers(row: CaseSummary) -> list[tuple[str, object]]:
    """Return the numbers of a case that stand in JUnit XML, medians over trials."""
    return [(name, row.values[name].value) for name in _PROPERTIES if name in row.values]


def print_runs(reporter: pytest.TerminalReporter, runs: Sequence[Run]) -> None:
    """Print the table of each run, and where its report is."""
    for run in runs:
        info = run.info()
        reporter.section(f"distbench: {one_line(info.suite_name)}")
        if reporter.verbosity >= 0:
            width = reporter.config.get_terminal_writer().fullwidth
            for line in plain(terminal.table(info, list(run.records()), width=width)).splitlines():
                reporter.write_line(line)
        reporter.write_line(f"report: {run.folder / 'report.html'}")
        if info.state != "finished":
            reporter.write_line(f"not all was run; go on with: distbench run --resume {run.folder}")


def _failed(run: Run, record: Record) -> str:
    kind = "" if record.job.kind == "measure" else f"{record.job.kind}: "
    lines = [f"{kind}{record.status}: {one_line(record.reason)}"]
    if failure := record.failure:
        rank = "no single rank" if failure.rank is None else f"rank {failure.rank}"
        lines.append(
            f"{rank}, in {failure.phase}, of {one_line(record.case.name)} {round_text(record.round)}"
        )
        if failure.rank is not None:
            folder = run.trial_folder(record.case, record.round, record.job.kind)
            lines.append(f"log: {log_file(folder, failure.rank)}")
        said = (failure.traceback or failure.log).strip().splitlines()
        lines += ["..."] * (len(said) > _MOST_LINES) + said[-_MOST_LINES:]
    return "\n".join(lines)
