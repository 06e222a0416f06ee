"""``distbench gate``: two arms side by side, and the verdict in the forms that CI reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench import spec
from distbench.cli.printing import note, say, say_json, width
from distbench.cli.progress import observer
from distbench.cli.running import INTERRUPTED
from distbench.errors import InfrastructureError, UsageError, did_you_mean
from distbench.gate.arms import Arm, kind_of, opened
from distbench.launchers.base import Place

_INCONCLUSIVE = ("tell", "pass", "fail")


@dataclass(frozen=True)
class Wanted:
    """What is to be held against what, as the command line says it."""

    suite: Path
    baseline: str
    overrides: spec.Overrides
    baseline_overrides: spec.Overrides
    set_baseline: tuple[str, ...]
    variables: tuple[tuple[str, ...], tuple[str, ...]]
    """NAME=VALUE of the baseline's ranks, and of the candidate's."""
    self_test: bool


@dataclass(frozen=True)
class Outputs:
    """In which forms the verdict is told, besides the terminal's."""

    junit: Path | None
    metrics: Path | None
    github: bool
    markdown: bool
    as_json: bool


def gate_suite(
    wanted: Wanted,
    outputs: Outputs,
    *,
    inconclusive: str,
    dry_run: bool,
    resume: Path | None,
    out: Path,
    quiet: bool,
) -> int:
    """Gate a suite and tell the verdict; return its exit code.

    Args:
        resume: Folder of a gate of the same arms that was stopped.

    Raises:
        UsageError: options that don't go together, or a baseline that can't be had.
        SuiteError: a suite that is wrong.
        InfrastructureError: the disk is full, or an output can't be written.
    """
    from distbench.cli import advising
    from distbench.gate import view
    from distbench.gate.forecast import forecast
    from distbench.gate.gating import Gate

    if inconclusive not in _INCONCLUSIVE:
        raise UsageError(f"--inconclusive = {inconclusive!r}: {did_you_mean(inconclusive, _INCONCLUSIVE)}")
    if outputs.as_json and outputs.markdown:
        raise UsageError("gate: one of --md and --json at a time")
    stored = advising.stored_run(wanted.baseline, out)
    if stored:
        suite = _alone(wanted, dry_run=dry_run, resume=resume)
        result = advising.advise(stored, suite, out=out, quiet=quiet)
    else:
        with _arms(wanted) as (baseline, candidate):
            if dry_run:
                made = forecast(baseline, candidate)
                say_json(made.to_json()) if outputs.as_json else say(view.forecast_text(made, width()))
                return 0
            with observer(quiet=quiet) as watcher:
                result = Gate(out, baseline, candidate, watcher, resume=resume).run()
    _tell(result, outputs)
    if result.state == "interrupted":
        note("stopped" if stored else f"stopped; go on with the same command and --resume {result.folder}")
        return INTERRUPTED
    return result.exit_code(inconclusive)  # type: ignore[arg-type]


def _alone(wanted: Wanted, *, dry_run: bool, resume: Path | None) -> spec.Suite:
    """Return the candidate's suite, which a stored run is held against.

    Raises:
        UsageError: an option that is of no use with a stored run.
        SuiteError: a suite that is wrong.
    """
    if wanted.set_baseline or any(wanted.variables):
        raise UsageError(
            "--baseline: a stored run is as it was; --set-baseline, --env and --env-baseline change none"
        )
    if dry_run:
        raise UsageError(
            "--dry-run: of a stored run nothing is run again; distbench plan shows the candidate"
        )
    if resume:
        raise UsageError("--resume: of a gate with two arms; against a stored run nothing is gone on with")
    return _ready(spec.load(wanted.suite, wanted.overrides))


@contextmanager
def _arms(wanted: Wanted) -> Iterator[tuple[Arm, Arm]]:
    """Yield baseline and candidate."""
    _one_difference(wanted)
    suites = [spec.load(wanted.suite, each) for each in (wanted.baseline_overrides, wanted.overrides)]
    # the rules are the candidate's; what either arm has to do besides measuring is the gate's to say
    suites = [_ready(suite) for suite in suites]
    options = ("--env-baseline", "--env")
    places = [
        Place(environment=_variables(given, option))
        for given, option in zip(wanted.variables, options, strict=True)
    ]
    changed = [*wanted.set_baseline, *wanted.variables[0]]
    mine = [*(each for each in wanted.overrides.set if not each.startswith("gate.")), *wanted.variables[1]]
    candidate = Arm(", ".join(mine) or "the suite as it stands", suites[1], places[1])
    told = "the same" if wanted.self_test else ", ".join(changed) or "the suite as it stands"
    baseline = Arm(told, suites[0], places[0])
    if not wanted.baseline:
        yield baseline, candidate
        return
    kind = kind_of(wanted.baseline)
    with (
        tempfile.TemporaryDirectory(prefix="distbench-") as folder,
        opened(kind, wanted.baseline, baseline, Path(folder), _loader(wanted)) as moved,
    ):
        yield moved, candidate


def _one_difference(wanted: Wanted) -> None:
    """Raise UsageError unless something, or expressly nothing, tells the arms apart."""
    apart = bool(wanted.baseline or wanted.set_baseline or any(wanted.variables))
    if wanted.self_test and apart:
        raise UsageError("--self-test: both arms are the same; it goes with no baseline and no change")
    if not (apart or wanted.self_test):
        raise UsageError(
            "gate: against what? --baseline with a git revision or a Python environment, --set-baseline "
            "KEY=VALUE, --env-baseline NAME=VALUE, or --self-test"
        )


def _ready(suite: spec.Suite) -> spec.Suite:
    """Return *suite* with the jobs that its gate demands switched on."""
    from distbench.job import Check

    if suite.gate.equivalence == "required" and suite.check is None:
        return replace(suite, check=Check())
    return suite


def _loader(wanted: Wanted) -> Callable[[Path], spec.Suite]:
    return lambda file: _ready(spec.load(file, wanted.baseline_overrides))


def _variables(given: Sequence[str], option: str) -> dict[str, str]:
    pairs = [(each, *each.partition("=")) for each in given]
    if wrong := [each for each, name, equals, _ in pairs if not (equals and name.isidentifier())]:
        raise UsageError(f"{option} {wrong[0]!r}: expected NAME=VALUE")
    return {name: value for _, name, _, value in pairs}


def _tell(result: Any, outputs: Outputs) -> None:
    from distbench.gate import github, junit, markdown, openmetrics, view

    if outputs.as_json:
        say_json(result.to_json())
    elif outputs.markdown:
        say(markdown.page(result))
    else:
        say(view.text(result, width()))
    for file, text in ((outputs.junit, junit.text), (outputs.metrics, openmetrics.text)):
        if file:
            _write(file, text(result))
    if outputs.github:
        for line in github.commands(result):
            say(line)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            _append(Path(summary), markdown.page(result) + "\n")
    note(f"records: {result.folder}")
    if (Path(result.folder) / "baseline").is_dir():
        note(f"as a page: distbench compare {result.folder}/baseline {result.folder}/candidate --html FILE")


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a") as stream:
            stream.write(text)
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error


def _write(file: Path, text: str) -> None:
    from distbench.files import write_whole

    try:
        write_whole(file, text)
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error
