"""Report cases and runs to pytest and pytest-benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distbench.analysis.case_summary import UNMEASURED, CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.job import MEASURE
from distbench.core.text import one_line, strip_control_characters
from distbench.ipc.trial_files import log_file
from distbench.pytest_plugin.session import CaseOutcome
from distbench.record import Record, Status, round_text
from distbench.record.run_folder import Run, resume_command
from distbench.report.overview import overview_text

_MAX_LOG_LINES = 20
_JUNIT_COLUMNS = ("step_s", "tokens_per_s", "memory_peak", "comm_bytes")


def failure_text(outcome: CaseOutcome) -> str:
    """Reason why the test of a case fails; empty if it passes."""
    failed = [record for record in outcome.records if record.status.is_failure]
    lines = [_failure_details(outcome.run, record) for record in failed[:1]]
    if len(failed) > 1:
        lines.append(f"{len(failed)} of its {len(outcome.records)} trials failed")
    lines += [f"{verdict.kind}: {verdict.sentence}" for verdict in outcome.row.verdicts_of("bad")]
    return strip_control_characters("\n".join(lines))


def skip_reason(outcome: CaseOutcome) -> str:
    """Reason why a case that did not fail has no result; empty if it has one."""
    row = outcome.row
    if row.status == Status.UNSUPPORTED:
        return one_line(row.reason)
    unknown = row.verdicts_of("unknown")
    if row.status == UNMEASURED and len(unknown) == len(row.verdicts):
        return one_line("; ".join(verdict.sentence for verdict in unknown))
    return ""


def junit_properties(row: CaseSummary) -> list[tuple[str, object]]:
    """Numbers of a case for JUnit XML, medians over trials."""
    return [(name, row.values[name].as_median.value) for name in _JUNIT_COLUMNS if name in row.values]


def add_benchmark(config: pytest.Config, outcome: CaseOutcome) -> str:
    """Add a case to pytest-benchmark's results, if it is active; return the problem, if any.

    A case that should be compared but can't be fails, since a missing result must not pass.
    """
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is None or session.disabled or session.skip:
        return ""
    from distbench.report.benchmark_export import make_benchmark, refusal

    if why := refusal(outcome.row):
        problem = f"{one_line(outcome.row.case.name)}: not passed to pytest-benchmark: {why}"
        if session.compare_fail:
            pytest.fail(f"{problem}; --benchmark-compare-fail has nothing to compare", pytrace=False)
        return problem
    session.benchmarks.append(make_benchmark(outcome.suite, outcome.run_id, outcome.steps, outcome.row))
    return ""


def print_runs(reporter: pytest.TerminalReporter, runs: Sequence[Run]) -> None:
    """Print the table of each run and the path of its report."""
    for run in runs:
        analysed = RunAnalysis.read(run)
        info = analysed.info
        reporter.section(f"distbench: {one_line(info.suite_name)}")
        if reporter.verbosity >= 0:
            width = reporter.config.get_terminal_writer().fullwidth
            for line in strip_control_characters(overview_text(analysed, width=width)).splitlines():
                reporter.write_line(line)
        reporter.write_line(f"report: {run.folder / 'report.html'}")
        if info.state != "finished":
            reporter.write_line(f"incomplete; resume with: {resume_command(run.folder)}")


def _failure_details(run: Run, record: Record) -> str:
    kind = "" if record.job.kind == MEASURE else f"{record.job.kind}: "
    lines = [f"{kind}{record.status}: {one_line(record.reason)}"]
    if failure := record.failure:
        rank = "no single rank" if failure.rank is None else f"rank {failure.rank}"
        lines.append(
            f"{rank}, in {failure.phase}, of {one_line(record.case.name)} {round_text(record.round)}"
        )
        if failure.rank is not None:
            folder = run.trial_folder(record.case, record.round, record.job.kind)
            lines.append(f"log: {log_file(folder, failure.rank)}")
        output = (failure.traceback or failure.log).strip().splitlines()
        lines += ["..."] * (len(output) > _MAX_LOG_LINES) + output[-_MAX_LOG_LINES:]
    return "\n".join(lines)
