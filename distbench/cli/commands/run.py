"""``distbench run``: measure a suite, or resume a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.options import argument, flag, option
from distbench.core.errors import UsageError

_DEFAULT_MINUTES = 30.0
"""Minutes after which --until-settled starts no round, unless --minutes is given."""


def run(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        argument("[SUITE]", "Suite file (YAML); with --from, --model or --data, the one to write."),
    ] = None,
    source: options.SourceOption = "",
    model: options.ModelOption = "",
    data: options.DatasetOption = "",
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    resume: Annotated[str, option("--resume", "RUN", "Resume a run: do only what is missing.")] = "",
    retry_failed: Annotated[
        bool, flag("--retry-failed", text="With --resume: also repeat trials that failed.")
    ] = False,
    keep_traces: Annotated[
        bool, flag("--keep-traces", text="Keep the profiler trace of every trial.")
    ] = False,
    strict_parity: Annotated[
        bool, flag("--strict-parity", text="Fail if a case did different work than its reference.")
    ] = False,
    check: options.CheckOption = False,
    until_settled: Annotated[
        bool,
        flag(
            "--until-settled",
            text="Then add rounds of the leading cases until the recommendation is settled.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        option(
            "--minutes", "N", f"With --until-settled: start no round after N minutes ({_DEFAULT_MINUTES:g})."
        ),
    ] = None,
    repeat_noisy: Annotated[
        int | None,
        option("--repeat-noisy", "N", "Repeat noisy trials, N per case at most, whatever the suite says."),
    ] = None,
    try_advice: Annotated[
        bool,
        flag(
            "--try",
            text="Then measure the advice against what limits the best case, and say what helped.",
        ),
    ] = False,
    on: options.OnOption = "",
    nodes: options.NodesOption = None,
    detach: Annotated[bool, flag("--detach", text="With --on: do not follow the run.")] = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Run a suite; write its records and a report.

    With --from, --model or --data it writes the suite first, as distbench init does.
    """
    from functools import partial

    from distbench.api.suite_run import write_results
    from distbench.cli.run_session import (
        create_execution,
        execute_run,
        exit_code,
        follow_submitted,
        load_resumed,
        print_results,
        submit,
    )
    from distbench.record.progress import ProgressLog
    from distbench.run import ignore_time_warning

    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes = {minutes:g}: must be above 0")
    if minutes is not None and not until_settled:
        raise UsageError(
            f"--minutes = {minutes:g}: limits the rounds that --until-settled adds; add --until-settled, or "
            "set measure.trials for the number of rounds"
        )
    if repeat_noisy is not None and repeat_noisy < 0:
        raise UsageError(f"--repeat-noisy = {repeat_noisy}: must be at least 0")
    changes = [*set_, *(["measure.keep_traces=true"] if keep_traces else [])]
    changed = options.make_overrides(changes, only, world_sizes, device, check=check)
    if retry_failed and not resume:
        raise UsageError("--retry-failed: nothing has failed yet; use it with --resume RUN")
    suite = _written_suite(suite, out, source, model, data, resume)
    if on or detach or nodes is not None:
        flags = {
            "--json": as_json,
            "--strict-parity": strict_parity,
            "--until-settled": until_settled,
            f"--minutes={minutes or 0:g}": minutes is not None,
            f"--repeat-noisy={repeat_noisy}": repeat_noisy is not None,
            "--retry-failed": retry_failed,
            "--try": try_advice,
        }
        passed = [word for word, is_given in flags.items() if is_given]
        if resume and (suite is not None or any((only, world_sizes, device, check))):
            raise UsageError("--resume --on takes no SUITE and no overrides but --set launcher.KEY=VALUE")
        elsewhere = submit(suite, out, changed, on, nodes, resume, passed, context.obj)
        return follow_submitted(elsewhere, detach=detach, quiet=quiet)
    if resume:
        allowed = ("launcher.", "launcher=", *(["check."] if check else []))
        others = [change for change in changes if not change.startswith(allowed)]
        if suite is not None or any((others, only, world_sizes, device)):
            raise UsageError(
                "--resume takes no SUITE and no overrides but --set launcher.KEY=VALUE. To add the "
                "equivalence check to a finished run: --check [--set check.KEY=VALUE]"
            )
        execution = load_resumed(context, resume, out, changed)
    else:
        execution = create_execution(context, suite, changed, out)
    minutes = (minutes or _DEFAULT_MINUTES) if until_settled else None
    repeats = execution.suite.measure.repeat_noisy if repeat_noisy is None else repeat_noisy
    journal = ProgressLog(execution.run.folder)
    with ignore_time_warning(), journal.session() as session:
        analysed = execute_run(
            execution,
            journal,
            minutes,
            repeats,
            retry_failed=retry_failed,
            quiet=quiet,
            show=write_results if try_advice and as_json else partial(print_results, as_json=as_json),
        )
        session.exit_code = (
            analysed if isinstance(analysed, int) else exit_code(analysed, strict_parity=strict_parity)
        )
    if try_advice and not isinstance(analysed, int):
        from distbench.cli.advice_trials import run_advice

        stopped = run_advice(execution, analysed, out, context.obj, quiet=quiet, as_json=as_json)
        return stopped or session.exit_code
    return session.exit_code


def _written_suite(
    suite: Path | None, out: Path, source: str, model: str, data: str, resume: str
) -> Path | None:
    """File of the suite that --from, --model and --data tell; without them *suite*.

    Raises:
        UsageError: they don't tell one, or the file is another suite.
    """
    if not (source or model or data):
        return suite
    from distbench.cli.suite_origin import DEFAULT_FILE, SuiteOrigin, stored_suite

    origin = SuiteOrigin(source, model, data)
    if resume:
        given = origin.options[0][0]
        raise UsageError(f"{given}: leave it out beside --resume, which goes on with the suite of its run")
    if not source and not model:
        raise UsageError(
            f"--data {data}: no model takes these rows; add --model package.module:callable, or a preset of "
            "the transformer such as tiny"
        )
    return stored_suite(origin, suite or DEFAULT_FILE, out)
