"""Measure a command for ``distbench measure``, and report what was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distbench.cli.output import print_note
from distbench.cli.run_session import print_results
from distbench.run.scripts.measurement import ScriptPlan, measure_script
from distbench.run.scripts.script_process import check_command


def measure_command(
    words: Sequence[str],
    command: tuple[str, ...],
    out: Path,
    *,
    as_json: bool,
    quiet: bool,
    **measured: Any,
) -> int:
    """Measure *command*; return its exit code, or 1 if it was 0 without a measurement.

    Args:
        words: The command line of distbench, for the run.
        measured: Fields of ``ScriptPlan``.
    """
    check_command(command, "measure")
    plan = ScriptPlan(command, output_to_stderr=as_json, **measured)
    outcome = measure_script(plan, out, words, (lambda _: None) if quiet else print_note)
    print_results(outcome.run, as_json=as_json)
    if outcome.exit_code:
        return outcome.exit_code if outcome.exit_code > 0 else 128 - outcome.exit_code
    return int(any(record.status.is_failure for record in outcome.records))
