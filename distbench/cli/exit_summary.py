"""How a command ends that has made a run: results, the report, and the exit code."""

from __future__ import annotations

from collections.abc import Callable

from distbench.analysis.key_findings import judged_bad
from distbench.analysis.missing_verdicts import unchecked
from distbench.analysis.run import AnalysedRun
from distbench.cli.colour import paint
from distbench.cli.interruption import report_command
from distbench.cli.output import UNCHECKED, complain, say, say_json, width
from distbench.core.errors import InfrastructureError
from distbench.core.text import listed
from distbench.record.reading import damage_text
from distbench.record.run_folder import Run
from distbench.report import page, terminal
from distbench.report.run_export import run_json


def _table(run: AnalysedRun) -> str:
    return terminal.table(run, width(), paint)


def reported(run: Run, shown: Callable[[AnalysedRun], str] = _table, *, as_json: bool) -> AnalysedRun:
    """Print the results as *shown*, then write the report: it may fail where the numbers don't."""
    analysed = AnalysedRun.read(run)
    if as_json:
        say_json({**run_json(analysed), "report": str(page.file(run.folder))})
    else:
        say(shown(analysed))
    try:
        report = page.write(run.folder, analysed)
    except InfrastructureError as error:
        again = report_command(run.folder)
        advice = f"the records are intact; free some space, then write the report with: {again}"
        raise InfrastructureError(error.problem, advice) from error
    if not as_json:
        say(f"\nreport: {report}")
    return analysed


def exit_code(run: AnalysedRun, *, strict_parity: bool) -> int:
    """Exit code of a finished run; the reasons are printed.

    1 if a case failed or was judged bad, or a trial is damaged; ``UNCHECKED`` if a judgement was asked for
    and there is none.
    """
    problems = judged_bad(run)
    if run.damaged:
        problems.append(damage_text(run.damaged))
    if strict_parity:
        changes = run.parity.other_work().items()
        problems += [f"--strict-parity: {difference} ({listed(names)})" for difference, names in changes]
    for problem in problems:
        complain(problem)
    silent = unchecked(run)
    for each in silent:
        complain(each)
    if problems or any(record.status.is_failure for record in run.records):
        return 1
    return UNCHECKED if silent else 0
