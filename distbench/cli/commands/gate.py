"""``distbench gate``: compare candidate and baseline side by side, with verdicts in CI formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.options import argument, flag, option
from distbench.cli.output import apply_style, print_json, print_note, print_text, terminal_width
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.gate.arms import GateArm
    from distbench.gate.verdicts import GateResult


@ignores_time_warnings
def gate(
    context: typer.Context,
    suite: Annotated[Path | None, argument("[SUITE]", "Suite file (YAML).")] = None,
    command: Annotated[
        list[str] | None, argument("[-- COMMAND]", "In place of a suite: the command of a training script.")
    ] = None,
    baseline: Annotated[
        str, option("--baseline", "REF|ENV|RUN", "Git revision, Python environment or stored run.")
    ] = "",
    since: Annotated[
        str, option("--since", "REF|ENV", "Also compare with this older baseline, to detect slow losses.")
    ] = "",
    set_: options.SetOption = [],
    set_baseline: Annotated[
        list[str], option("--set-baseline", "KEY=VALUE", "Like --set, for the baseline only.")
    ] = [],
    env: Annotated[
        list[str], option("--env", "NAME=VALUE", "Environment variable of the candidate's ranks.")
    ] = [],
    env_baseline: Annotated[
        list[str], option("--env-baseline", "NAME=VALUE", "Like --env, for the baseline only.")
    ] = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    max_pairs: Annotated[int | None, option("--max-pairs", "N", "Most pairs of trials per case.")] = None,
    minutes: Annotated[float | None, option("--minutes", "N", "Start no new pair after N minutes.")] = None,
    inconclusive: Annotated[
        str, option("--inconclusive", "WORD", "report (exit 3), pass (0) or fail (1).", has_default=True)
    ] = "tell",
    always: Annotated[
        bool, flag("--always", text="Compare times also where no rank imports what has changed.")
    ] = False,
    self_test: Annotated[
        bool, flag("--self-test", text="Compare the suite with itself; nothing should be flagged.")
    ] = False,
    resume: Annotated[Path | None, option("--resume", "GATE", "Resume a stopped gate: its folder.")] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", text="Show what would run, without launching anything.")
    ] = False,
    junit: Annotated[Path | None, option("--junit", "FILE", "Also write JUnit XML.")] = None,
    metrics: Annotated[
        Path | None, option("--metrics", "FILE", "Also write OpenMetrics, as GitLab reads it.")
    ] = None,
    github: Annotated[
        bool, flag("--github", text="Also print annotations and write the job summary.")
    ] = False,
    markdown: options.MarkdownOption = False,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Run candidate and baseline in turn; fail on a regression."""
    from distbench.api.progress import observe_progress
    from distbench.cli.gate_arms import ArmOptions, make_arms, run_against_stored, with_pinned_rules
    from distbench.cli.interruption import print_stopped, resume_hint_on_abort
    from distbench.cli.script_gate import command_after_dashes, gate_script
    from distbench.cli.started_ranks import join_started_ranks
    from distbench.gate.gate import Gate
    from distbench.record import catalog

    options.check_choice("--inconclusive", inconclusive, ("tell", "pass", "fail"))
    options.check_exclusive("gate", md=markdown, json=as_json)
    rules = _limit_settings(max_pairs=max_pairs, minutes=minutes)
    option_of = rules | {setting: f"--set-baseline {setting}" for setting in set_baseline}
    before = ArmOptions(
        options.make_overrides(
            [*set_, *rules, *set_baseline], only, world_sizes, device, option_of=option_of
        ),
        _parse_variables(env_baseline, "--env-baseline"),
        (*set_baseline, *env_baseline),
    )
    after = ArmOptions(
        options.make_overrides([*set_, *rules], only, world_sizes, device, option_of=rules),
        _parse_variables(env, "--env"),
        (*(setting for setting in set_ if not setting.startswith("gate.")), *env),
    )
    is_changed, resume_with = bool(before.changes or env), ""
    if (script := command_after_dashes(context.obj)) is not None:
        _check_script(suite, script, is_changed=is_changed, alone=(since, only, resume, dry_run))
        _check_difference(is_different=bool(baseline), self_test=self_test)
        result = gate_script(
            script,
            context.obj,
            out,
            baseline=baseline,
            settings=[*set_, *rules],
            self_test=self_test,
            quiet=quiet,
        )
        _print(result, markdown=markdown, as_json=as_json)
        _write(result, junit=junit, metrics=metrics, github=github, is_data=as_json or markdown)
        return print_stopped(result.stopped, "") if result.stopped else result.exit_code(inconclusive)  # type: ignore[arg-type]
    if suite is None or command:
        extra = f"{command[0]} is none of its arguments" if command else "missing SUITE"
        raise UsageError(f"gate: {extra}; to gate a script, write: distbench gate --baseline REF -- COMMAND")
    if stored := catalog.find_run_strict(baseline, out):
        _check_meant(baseline, stored.folder)
        _check_stored(is_changed=is_changed, dry_run=dry_run, resume=resume)
        _check_since(since, is_alone=True)
        candidate = after.load(suite)
        join_started_ranks(context, candidate, out)
        result = run_against_stored(stored, candidate, out, context.obj, quiet=quiet)
    else:
        _check_difference(is_different=is_changed or bool(baseline), self_test=self_test)
        _check_since(since, is_alone=dry_run or bool(resume) or not baseline)
        if not dry_run:
            join_started_ranks(context, after.load(suite), out)
        with make_arms(suite, baseline, before, after, self_test=self_test) as arms:
            if dry_run:
                return _print_forecast(*arms, out, as_json=as_json)
            started = Gate(out, *arms, command=context.obj, resume=resume, always=always)
            resume_with = "" if since else started.resume_command
            with resume_hint_on_abort(resume_with), observe_progress(quiet=quiet) as watcher:
                result = started.run(watcher)
        if since and result.state == "finished" and result.exit_code("pass") == 0:
            with (
                make_arms(suite, since, before, after, self_test=False) as (older, arm),
                observe_progress(quiet=quiet) as watcher,
            ):
                pinned = Gate(out, older, with_pinned_rules(arm), command=context.obj, always=always).run(
                    watcher
                )
            result = replace(result, since=pinned, stopped=pinned.stopped)
    with resume_hint_on_abort(resume_with):
        _print(result, markdown=markdown, as_json=as_json)
        _write(result, junit=junit, metrics=metrics, github=github, is_data=as_json or markdown)
    if result.stopped:
        return print_stopped(result.stopped, resume_with)
    return result.exit_code(inconclusive)  # type: ignore[arg-type]  # checked above


def _check_script(
    suite: Path | None, script: Sequence[str], *, is_changed: bool, alone: Sequence[object]
) -> None:
    """Raise UsageError if options were given that need a suite."""
    if suite is not None and [str(suite)] != [*script[:1]]:
        raise UsageError(f"gate: {suite} and a command after --; give one of them")
    if is_changed or any(alone):
        raise UsageError(
            "gate -- COMMAND takes --baseline with a revision or an environment, or --self-test, but no "
            "--since, --only, --env, --env-baseline, --set-baseline, --resume, --dry-run"
        )


def _limit_settings(**limits: float | None) -> dict[str, str]:
    """Settings for the given *limits*, each with its option."""
    given = {key: limit for key, limit in limits.items() if limit is not None}
    return {f"gate.{key}={limit}": f"--{key.replace('_', '-')} {limit}" for key, limit in given.items()}


def _parse_variables(settings: Sequence[str], option: str) -> dict[str, str]:
    pairs = [(setting, *setting.partition("=")) for setting in settings]
    if wrong := [setting for setting, name, equals, _ in pairs if not (equals and name.isidentifier())]:
        raise UsageError(f"{option} {wrong[0]!r}: expected NAME=VALUE")
    return {name: value for _, name, _, value in pairs}


def _check_meant(baseline: str, folder: Path) -> None:
    """Raise UsageError if *baseline*, which denotes the run in *folder*, is also a git revision."""
    from distbench.gate.arms import commit_of

    if Path(baseline) == folder:
        return
    try:
        commit = commit_of(baseline)
    except UsageError:
        return
    raise UsageError(
        f"--baseline {baseline}: ambiguous: matches the ID of the run {folder} and a git commit "
        f"({commit[:10]}); give the run's folder, or more digits of the commit"
    )


def _check_stored(*, is_changed: bool, dry_run: bool, resume: Path | None) -> None:
    """Raise UsageError for options that a stored run as the baseline does not allow."""
    if is_changed:
        raise UsageError("--set-baseline, --env and --env-baseline can't be combined with a stored run")
    if dry_run:
        raise UsageError("--dry-run does not apply to a stored baseline; see distbench plan")
    if resume:
        raise UsageError("--resume: a gate against a stored run can't be resumed")


def _check_since(since: str, *, is_alone: bool) -> None:
    """Raise UsageError if --since is given without a revision or an environment as the baseline."""
    if since and is_alone:
        raise UsageError(
            "--since needs --baseline with a revision or an environment, and can't be combined with --resume "
            "and --dry-run; to compare with the older baseline alone, give it as --baseline"
        )


def _check_difference(*, is_different: bool, self_test: bool) -> None:
    """Raise UsageError unless the arms differ, or are the same on purpose."""
    if self_test and is_different:
        raise UsageError(
            "--self-test compares the suite with itself; drop --baseline, --set-baseline, --env and "
            "--env-baseline"
        )
    if not (is_different or self_test):
        raise UsageError(
            "gate: no baseline; give --baseline (git revision, Python environment or stored run), "
            "--set-baseline, --env-baseline or --self-test"
        )


def _print_forecast(baseline: GateArm, candidate: GateArm, out: Path, *, as_json: bool) -> int:
    from distbench.gate import view
    from distbench.gate.forecast import forecast

    expected = forecast(baseline, candidate, out)
    print_json(expected.to_json()) if as_json else print_text(view.forecast_text(expected, terminal_width()))
    return 0


def _print(result: GateResult, *, markdown: bool, as_json: bool) -> None:
    from distbench.gate import outputs, view

    if as_json:
        print_json(result.to_json())
    elif markdown:
        print_text(outputs.to_markdown(result))
    else:
        print_text(view.result_text(result, terminal_width(), apply_style))


def _write(
    result: GateResult, *, junit: Path | None, metrics: Path | None, github: bool, is_data: bool
) -> None:
    """Write result files; *is_data*: standard output contains only JSON or Markdown."""
    from distbench.gate import outputs
    from distbench.system.files import infrastructure_errors, write_atomic

    for file, text in ((junit, outputs.to_junit), (metrics, outputs.to_openmetrics)):
        if file:
            with infrastructure_errors(file):
                write_atomic(file, text(result))
    if github:
        # GitHub reads both
        annotate = print_note if is_data else print_text
        for line in outputs.github_annotations(result):
            annotate(line)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            with infrastructure_errors(Path(summary)), Path(summary).open("a") as stream:
                stream.write(outputs.to_markdown(result) + "\n")
    print_note(f"records: {result.folder}")
    arms = [Path(result.folder) / name for name in ("baseline", "candidate")]
    if arms[0].is_dir():
        print_note(f"as HTML: distbench compare {arms[0]} {arms[1]} --html FILE")
