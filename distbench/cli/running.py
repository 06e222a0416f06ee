"""``distbench run`` and ``distbench prepare``."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

from distbench import env, plan, spec, store
from distbench.cli.printing import complain, note, say, say_json
from distbench.cli.progress import observer
from distbench.cli.showing import find_run, print_table, show_view, summary_of
from distbench.errors import UsageError

INTERRUPTED = 130


def run_suite(
    file: Path, overrides: spec.Overrides, *, out: Path, as_json: bool, quiet: bool, strict_parity: bool
) -> int:
    """Run a suite from its file and print what came of it."""
    suite = spec.load(file, overrides)
    planned = plan.make(suite, env.detect(suite.device))
    run, info = _begun(suite, planned, out)
    code = _execute(run, info, suite, planned, as_json=as_json, quiet=quiet)
    return _strict(run) or code if strict_parity and code in (0, 1) else code


def run_quietly(suite: spec.Suite, out: Path, *, quiet: bool) -> store.Run:
    """Run *suite* and return what it left, without telling what came of it."""
    from distbench.run import execute

    planned = plan.make(suite, env.detect(suite.device))
    run, info = _begun(suite, planned, out)
    with observer(quiet=quiet) as watcher:
        execute(run, info, suite, planned, watcher)
    return run


def _begun(suite: spec.Suite, planned: plan.Plan, out: Path) -> tuple[store.Run, store.RunInfo]:
    info = store.RunInfo.begun(suite, planned.cases, ["distbench", *sys.argv[1:]])
    return store.Run.create(out, info, suite.text), info


def resume_run(
    name: str, added: spec.Overrides | None, *, out: Path, as_json: bool, quiet: bool, strict_parity: bool
) -> int:
    """Go on with what a run lacks and print what came of it.

    Args:
        added: The check that the run was begun without.
    """
    run = find_run(name, out)
    info = run.info()
    if added and info.suite.get("check"):
        raise UsageError(f"--resume {name} --check: the run was begun with --check; leave it out to go on")
    suite = spec.Suite.from_resolved(info.suite, added)
    planned = plan.make(suite, env.detect(suite.device))
    if [item.case.id for item in planned.cases] != [item.case.id for item in info.cases]:
        raise UsageError(
            f"--resume {name}: this machine, or this version, makes other cases of the suite than the "
            f"run was begun with; begin a new run with: distbench run {run.folder / 'suite.yaml'}"
        )
    if added:
        # the command that does all of it at once, for who repeats it
        settings = [word for setting in added.set for word in ("--set", setting)]
        command = [*info.command, "--check", *settings]
        info = dataclasses.replace(info, suite=suite.resolved(), command=command)
        run.write_info(info)
    code = _execute(run, info, suite, planned, as_json=as_json, quiet=quiet)
    return _strict(run) or code if strict_parity and code in (0, 1) else code


def prepare_suite(file: Path, overrides: spec.Overrides, *, quiet: bool) -> int:
    """Build what a suite needs once."""
    from distbench.run import prepare

    suite = spec.load(file, overrides)
    planned = plan.make(suite, env.detect(suite.device))
    with observer(quiet=quiet) as watcher, tempfile.TemporaryDirectory(prefix="distbench-") as folder:
        failed = prepare(suite, planned, Path(folder), store.new_run_id(), watcher)
    for what, reason in failed.items():
        complain(f"{what}: {reason}")
    return 1 if failed else 0


def _strict(run: store.Run) -> int:
    """Complain of every difference that changes the work, once; return 1 if there is one."""
    from distbench.analysis.parity import other_work
    from distbench.analysis.summary import summarise
    from distbench.analysis.text import listed

    found = other_work(summarise(run.info(), list(run.records())))
    for difference, names in found.items():
        complain(f"--strict-parity: {difference} ({listed(names)})")
    return 1 if found else 0


def _execute(
    run: store.Run, info: store.RunInfo, suite: spec.Suite, planned: plan.Plan, *, as_json: bool, quiet: bool
) -> int:
    from distbench.analysis.alarms import alarms
    from distbench.analysis.summary import summarise
    from distbench.report import page
    from distbench.run import execute

    with observer(quiet=quiet) as watcher:
        outcome = execute(run, info, suite, planned, watcher)
    info, records = run.info(), list(run.records())
    report = page.write(run)
    if as_json:
        say_json({**summary_of(info, records), "report": str(report)})
    else:
        print_table(info, records)
        if suite.checkpoint:
            say()
            show_view(str(run.folder), "checkpoint", out=run.folder.parent)
        say(f"\nreport: {report}")
    if outcome.interrupted:
        note(f"stopped; go on with: distbench run --resume {run.folder}")
        return INTERRUPTED
    wrong = alarms(summarise(info, records), records)
    for sentence in wrong:
        complain(sentence)
    return 1 if wrong or any(record.status.is_failure for record in records) else 0
