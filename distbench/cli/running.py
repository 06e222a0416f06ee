"""``distbench run`` and ``distbench prepare``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from distbench import __version__, env, plan, spec, store
from distbench.cli.printing import complain, note, say, say_json
from distbench.cli.progress import observer
from distbench.cli.showing import find_run, print_table, show_view, summary_of
from distbench.errors import UsageError
from distbench.record import Record

INTERRUPTED = 130


def run_suite(
    file: Path, overrides: spec.Overrides, *, out: Path, as_json: bool, quiet: bool, strict_parity: bool
) -> int:
    """Run a suite from its file and print what came of it."""
    suite = spec.load(file, overrides)
    planned = plan.make(suite, env.detect(suite.device))
    info = store.RunInfo(
        run_id=store.new_run_id(),
        suite_name=suite.name,
        version=__version__,
        created=store.utc_now(),
        state="running",
        command=["distbench", *sys.argv[1:]],
        suite=suite.resolved(),
        machine=env.describe(),
        cases=planned.cases,
    )
    run = store.Run.create(out, info, suite.text)
    code = _execute(run, info, suite, planned, as_json=as_json, quiet=quiet)
    return _strict(run) or code if strict_parity and code in (0, 1) else code


def resume_run(name: str, *, out: Path, as_json: bool, quiet: bool, strict_parity: bool) -> int:
    """Go on with what a run lacks and print what came of it."""
    run = find_run(name, out)
    info = run.info()
    suite = spec.Suite.from_resolved(info.suite)
    planned = plan.make(suite, env.detect(suite.device))
    if [item.case.id for item in planned.cases] != [item.case.id for item in info.cases]:
        raise UsageError(
            f"--resume {name}: this machine, or this version, makes other cases of the suite than the "
            f"run was begun with; begin a new run with: distbench run {run.folder / 'suite.yaml'}"
        )
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


def _not_converging(info: store.RunInfo, records: Sequence[Record]) -> bool:
    """Complain of every case that trains worse than its reference; return whether there is one."""
    from distbench.analysis.convergence import FAILING
    from distbench.analysis.summary import summarise
    from distbench.analysis.text import one_line

    found = [row for row in summarise(info, records) if row.convergence and row.convergence.word in FAILING]
    for row in found:
        assert row.convergence
        complain(f"convergence: {one_line(row.case.name)}: {row.convergence.word}: {row.convergence.why}")
    return bool(found)


def _execute(
    run: store.Run, info: store.RunInfo, suite: spec.Suite, planned: plan.Plan, *, as_json: bool, quiet: bool
) -> int:
    from distbench.analysis.checkpoint import broken, to_json
    from distbench.analysis.summary import summarise
    from distbench.analysis.text import listed
    from distbench.report import page
    from distbench.run import execute

    with observer(quiet=quiet) as watcher:
        outcome = execute(run, info, suite, planned, watcher)
    info, records = run.info(), list(run.records())
    checkpoints = [record for record in records if record.job.kind == "checkpoint"]
    report = page.write(run)
    if as_json:
        told = {"checkpoints": to_json(checkpoints)} if suite.checkpoint else {}
        say_json({**summary_of(info, records), **told, "report": str(report)})
    else:
        print_table(info, records)
        if checkpoints:
            say()
            show_view(str(run.folder), "checkpoint", out=run.folder.parent)
        say(f"\nreport: {report}")
    if outcome.interrupted:
        note(f"stopped; go on with: distbench run --resume {run.folder}")
        return INTERRUPTED
    differing = [row for row in summarise(info, records) if row.differs]
    if differing:
        complain(f"not the same training as the reference: {listed([row.case.name for row in differing])}")
    wrong = broken(checkpoints)
    for sentence in wrong:
        complain(sentence)
    failed = any(record.status.is_failure for record in records)
    return 1 if _not_converging(info, records) or differing or wrong or failed else 0
