"""Measure the advice against what limits the best case of a run, and say what helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_limits import StepLimit, step_limit
from distbench.analysis.suggested_changes import suggested_changes
from distbench.analysis.wording.change_results import ChangeResult, change_results
from distbench.api.suite_run import write_results
from distbench.cli.output import print_json, print_note, print_text, terminal_width
from distbench.cli.run_session import execute_run, results_json
from distbench.core.text import join_limited, wrap_text
from distbench.core.units import format_count
from distbench.plan.setting_changes import ChangeTrials, suite_of_changes
from distbench.record.progress import ProgressLog
from distbench.run import RunExecution
from distbench.suite import Suite


@dataclass(frozen=True)
class Advice:
    """Changes that were tried on a case, with their results, or the reason why none was."""

    case: str = ""
    """Name of the case that was changed."""
    limit: StepLimit | None = None
    results: Sequence[ChangeResult] = ()
    folder: Path | None = None
    """Folder of the run that tried it."""
    reason: str = ""

    def text(self, width: int) -> str:
        """The results as lines of *width* characters."""
        if self.limit is None or not self.results:
            return "\n".join(wrap_text(f"Nothing was tried: {self.reason}.", width))
        lead = f"Tried on {self.case}, which is {self.limit.word} ({self.limit.sentence}):"
        lines = wrap_text(lead, width, indent="  ")
        for result in self.results:
            lines += wrap_text(f"{result.sentence}.", width, first_indent="  - ", indent="    ")
        return "\n".join([*lines, *([f"  Records and report: {self.folder}"] if self.folder else [])])

    def to_json(self) -> dict[str, Any]:
        """The results as plain JSON types."""
        return {
            "case": self.case or None,
            "limit": self.limit and self.limit.limit,
            "changes": [result.to_json() for result in self.results],
            "run": self.folder and str(self.folder),
            "reason": self.reason or None,
        }


def run_advice(
    execution: RunExecution,
    analysed: RunAnalysis,
    out: Path,
    command: Sequence[str],
    *,
    quiet: bool,
    as_json: bool,
) -> int:
    """Try the advice for *execution*, and print what helped; with *as_json* also its results.

    Returns the exit code if the trials were stopped early, else 0.
    """
    advice = _try_advice(analysed, execution.suite, out, command, quiet=quiet)
    found = advice if isinstance(advice, Advice) else None
    if as_json:
        print_json({**results_json(execution.run, analysed), "advice": found and found.to_json()})
    elif found:
        print_text(f"\n{found.text(terminal_width())}")
    return 0 if isinstance(advice, Advice) else advice


def _try_advice(
    analysed: RunAnalysis, suite: Suite, out: Path, command: Sequence[str], *, quiet: bool
) -> Advice | int:
    """Measure what may help the best case of *analysed*, in a run of its own below *out*.

    Returns the exit code if that run was stopped early.
    """
    row, why = _best_case(analysed)
    if row is None:
        return Advice(reason=why)
    limit, name = step_limit(row), row.case.name
    if isinstance(limit, str):
        return Advice(name, reason=f"what limits the step of {name} is unknown: {limit}")
    if limit.limit == "noise":
        return Advice(name, limit, reason=f"{name} was measured on a noisy machine; {limit.advice}")
    changes = suggested_changes(row.case, limit.limit)
    if not changes:
        why = f"{name} is {limit.word}, and no setting that keeps its work helps; advice: {limit.advice}"
        return Advice(name, limit, reason=why)
    trials = suite_of_changes(row.case, changes, suite, _description(analysed, row, limit))
    if not trials.changes:
        return Advice(name, limit, change_results(analysed, trials))
    words = join_limited([change.text for change in trials.changes.values()], limit=6)
    print_note(f"trying {format_count(len(trials.changes), 'change')} of {name} ({limit.word}): {words}")
    return _measure(trials, name, limit, out, command, quiet=quiet)


def _measure(
    trials: ChangeTrials, name: str, limit: StepLimit, out: Path, command: Sequence[str], *, quiet: bool
) -> Advice | int:
    execution = RunExecution.create(trials.suite, out, command)
    journal = ProgressLog(execution.run.folder)
    repeats = trials.suite.measure.repeat_noisy
    with journal.session() as session:
        measured = execute_run(
            execution, journal, None, repeats, retry_failed=False, quiet=quiet, show=write_results
        )
        session.exit_code = measured if isinstance(measured, int) else 0
    if isinstance(measured, int):
        return measured
    return Advice(name, limit, change_results(measured, trials), execution.run.folder)


def _best_case(analysed: RunAnalysis) -> tuple[CaseSummary | None, str]:
    """The recommended case, else the best under noise, else why there is none."""
    selection = analysed.selection
    best = selection.pick or next(iter([*selection.provisional, *selection.ranked]), None)
    if best is None:
        return None, "no case can be recommended"
    return next(row for row in analysed.cases if row.case.id == best.id), ""


def _description(analysed: RunAnalysis, row: CaseSummary, limit: StepLimit) -> str:
    return f"Changes of {row.case.name} of run {analysed.info.run_id}, which is {limit.word}."
