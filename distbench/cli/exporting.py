"""``distbench export``: the curves of a run, sent to where people look; its times, as benchmarks."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shlex
from pathlib import Path

from distbench.analysis.text import one_line
from distbench.cli.printing import note, say
from distbench.cli.showing import find_run
from distbench.errors import UsageError, did_you_mean
from distbench.files import slug
from distbench.store import Run

_DISTRIBUTIONS = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""Tool -> the distribution that has what writes its files."""

_LOOK = {
    "tensorboard": "look at them with: tensorboard --logdir {}",
    "mlflow": "look at them, with the whole of mlflow installed, with: "
    "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}",
    "wandb": "they are on this machine only; to send them to W&B: wandb sync {}/wandb/offline-run-*",
}


_BENCHMARKS = "pytest-benchmark"


def export_run(name: str, to: str, into: Path | None, *, out: Path) -> int:
    """Send a run to the tool *to*, as files in the folder *into*.

    Raises:
        UsageError: there is no such tool or run, a package is missing, the run has nothing to send, or
            the folder is not empty (of pytest-benchmark: has this run).
        InfrastructureError: a file can't be written.
    """
    if to not in (*_DISTRIBUTIONS, _BENCHMARKS):
        raise UsageError(f"--to = {to!r}: {did_you_mean(to, (*_DISTRIBUTIONS, _BENCHMARKS))}")
    run = find_run(name, out)
    return _export_times(run, into) if to == _BENCHMARKS else _export_curves(run, to, into)


def _export_times(run: Run, into: Path | None) -> int:
    from distbench.analysis.summary import summarise

    if not _installed(_BENCHMARKS):
        raise UsageError(f"--to {_BENCHMARKS}: install it with: pip install {_BENCHMARKS}")
    from distbench.report.benchmarks import refused, save

    info = run.info()
    reasons = [(row, refused(row)) for row in summarise(info, list(run.records()))]
    given = [row for row, why in reasons if not why]
    for row, why in reasons:
        if why:
            note(f"left out: {one_line(row.case.name, 100)}: {why}")
    if not given:
        raise UsageError(f"{run.folder}: no case of this run has times that may be compared")
    folder = (into or run.folder / _BENCHMARKS).resolve()
    save(info, given, folder)
    look = f"pytest-benchmark --storage {shlex.quote(str(folder))} compare"
    say(f"{len(given)} benchmarks in {folder}; compare them with: {look}")
    return 0


def _export_curves(run: Run, to: str, into: Path | None) -> int:
    from distbench.analysis.curves import curves_of
    from distbench.run.export import send

    info = run.info()
    if missing := [each for each in ("accelerate", "torch", _DISTRIBUTIONS[to]) if not _installed(each)]:
        raise UsageError(
            f"--to {to}: needs {', '.join(missing)}; install it with: pip install 'distbench[trackers]'"
        )
    found = curves_of(run.records())
    if not found:
        raise UsageError(
            f"{run.folder}: no curves: no trial of this run was measured, and none trained to a target"
        )
    folder = (into or run.folder / to).resolve()
    # of one suite, runs stand side by side
    project = f"{slug(info.suite_name)}-{slug(info.run_id)}"
    send(to, folder, project, [dataclasses.asdict(each) for each in found])
    say(f"{len(found)} runs of {to} in {folder}; {_LOOK[to].format(shlex.quote(str(folder)))}")
    return 0


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
