"""Print the results of a run and choose the exit code."""

from __future__ import annotations

from collections.abc import Callable

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import bad_verdict_sentences, missing_verdict_sentences
from distbench.cli.colour import apply_style
from distbench.cli.interruption import report_command
from distbench.cli.output import EXIT_UNCHECKED, print_error, print_json, print_text, terminal_width
from distbench.core.errors import InfrastructureError
from distbench.core.text import join_limited
from distbench.record.record_reader import damage_summary
from distbench.record.run_folder import Run
from distbench.report import page
from distbench.report.overview import overview_text
from distbench.report.run_export import run_json


def _table(run: RunAnalysis) -> str:
    return overview_text(run, terminal_width(), apply_style)


def print_results(run: Run, shown: Callable[[RunAnalysis], str] = _table, *, as_json: bool) -> RunAnalysis:
    """Print the results as *shown*, then write the report: it may fail where the numbers don't."""
    analysed = RunAnalysis.read(run)
    if as_json:
        print_json({**run_json(analysed), "report": str(page.page_file(run.folder))})
    else:
        print_text(shown(analysed))
    try:
        report = page.write(run.folder, analysed)
    except InfrastructureError as error:
        again = report_command(run.folder)
        advice = f"the records are intact; free some space, then write the report with: {again}"
        raise InfrastructureError(error.problem, advice) from error
    if not as_json:
        print_text(f"\nreport: {report}")
    return analysed


def exit_code(run: RunAnalysis, *, strict_parity: bool) -> int:
    """Exit code of a finished run; the reasons are printed.

    1 if a case failed or was judged bad, or a trial is damaged; ``EXIT_UNCHECKED`` if a requested judgement
    is missing.
    """
    problems = bad_verdict_sentences(run)
    if run.damaged:
        problems.append(damage_summary(run.damaged))
    if strict_parity:
        changes = run.parity.work_changes().items()
        problems += [
            f"--strict-parity: {difference} ({join_limited(names)})" for difference, names in changes
        ]
    for problem in problems:
        print_error(problem)
    silent = missing_verdict_sentences(run)
    for each in silent:
        print_error(each)
    if problems or any(record.status.is_failure for record in run.records):
        return 1
    return EXIT_UNCHECKED if silent else 0
