"""``distbench export``: the curves of a run for a tracker, or its times as benchmarks."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distbench.cli.decorators import reads_runs
from distbench.cli.options import DEFAULT_RUNS_FOLDER, OutOption, RunArgument, check_choice, option
from distbench.cli.output import print_note, print_text
from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.text import one_line

if TYPE_CHECKING:
    from distbench.record.run_folder import Run

_DISTRIBUTIONS: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
}
"""Tool -> distribution that writes its files."""

_NEXT_STEPS: Mapping[str, str] = {
    "tensorboard": "view them with: tensorboard --logdir {}",
    "mlflow": "view them with a full installation of mlflow: "
    "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {}",
    "wandb": "they are only on this machine; upload them with: wandb sync {}/wandb/offline-run-*",
}

_BENCHMARKS = "pytest-benchmark"


@reads_runs
def export(
    name: RunArgument,
    to: Annotated[
        str,
        option(
            "--to",
            "TOOL",
            "tensorboard, mlflow, wandb, pytest-benchmark; on standard output: github-action-benchmark, "
            "bencher, openmetrics.",
        ),
    ],
    into: Annotated[
        Path | None, option("--into", "DIR", "Empty folder, or a pytest-benchmark storage.")
    ] = None,
    out: OutOption = DEFAULT_RUNS_FOLDER,
) -> int:
    """Export a run's curves or numbers to another tool."""
    from distbench.record import catalog
    from distbench.report.metric_formats import METRIC_FORMATS

    check_choice("--to", to, (*_DISTRIBUTIONS, _BENCHMARKS, *METRIC_FORMATS))
    if to in METRIC_FORMATS and into:
        raise UsageError(f"--into {into}: --to {to} writes to standard output; redirect it to a file")
    run = catalog.find_run(name, out)
    if to in METRIC_FORMATS:
        return _print_numbers(run, to)
    return _export_times(run, into) if to == _BENCHMARKS else _export_curves(run, to, into)


def _print_numbers(run: Run, to: str) -> int:
    from distbench.cli.stored_runs import load_run
    from distbench.core.grouping import group_pairs
    from distbench.report.metric_formats import METRIC_FORMATS, has_numbers, metric_absences

    read = load_run(run)
    for row in read.cases:
        for reason, columns in group_pairs((why, each) for each, why in metric_absences(row).items()).items():
            left_out = ", ".join(columns) if has_numbers(row) else "all"
            print_note(f"left out: {one_line(row.case.name, 100)}: {left_out}: {reason}")
    if not any(map(has_numbers, read.cases)):
        raise UsageError(f"{run.folder}: no case of this run has numbers that can be compared")
    print_text(METRIC_FORMATS[to](read.info.suite_name, read.cases))
    return 0


def _export_times(run: Run, into: Path | None) -> int:
    from distbench.cli.stored_runs import load_run

    if not _is_installed(_BENCHMARKS):
        raise UsageError(f"--to {_BENCHMARKS}: install it with: pip install {_BENCHMARKS}")
    from distbench.report.benchmark_export import refusal, save

    read = load_run(run)
    reasons = [(row, refusal(row)) for row in read.cases]
    exported = [row for row, reason in reasons if not reason]
    for row, reason in reasons:
        if reason:
            print_note(f"skipped: {one_line(row.case.name, 100)}: {reason}")
    if not exported:
        raise UsageError(f"{run.folder}: no case of this run has times that can be compared")
    folder = (into or _subfolder(run, _BENCHMARKS)).resolve()
    save(read.info, exported, folder)
    command = f"pytest-benchmark --storage {shlex.quote(str(folder))} compare"
    print_text(f"{len(exported)} benchmarks in {folder}; compare them with: {command}")
    return 0


def _export_curves(run: Run, to: str, into: Path | None) -> int:
    from distbench.analysis.training_curves import training_curves
    from distbench.cli.stored_runs import load_run
    from distbench.system.files import slug
    from distbench.system.machine import install_hint

    needed = ("accelerate", "torch", _DISTRIBUTIONS[to])
    if missing := [distribution for distribution in needed if not _is_installed(distribution)]:
        raise UsageError(f"--to {to}: needs {', '.join(missing)}; install it {install_hint('trackers')}")
    read = load_run(run)
    curves = training_curves(read.records)
    if not curves:
        raise UsageError(f"{run.folder}: no curves: no trial of this run was measured or trained to a target")
    folder = (into or _subfolder(run, to)).resolve()
    # one project per suite, so that its runs can be compared
    project = f"{slug(read.info.suite_name)}-{slug(read.info.run_id)}"
    export_curves(to, folder, project, [dataclasses.asdict(curve) for curve in curves])
    print_text(f"{len(curves)} {to} runs in {folder}; {_NEXT_STEPS[to].format(shlex.quote(str(folder)))}")
    return 0


def export_curves(tracker: str, folder: Path, project: str, runs: list[dict[str, Any]]) -> None:
    """Send *runs* (``analysis.training_curves.TrainingCurve`` as plain JSON types) to the tool *tracker*.

    Raises:
        UsageError: the folder *folder* is not empty, or can't be created.
        InfrastructureError: the tracker failed; it leaves nothing behind.
    """
    was_there = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            # a second copy in the same folder would draw every point twice
            raise UsageError(f"--into {folder}: not empty; remove it or choose another folder")
    except OSError as error:
        raise UsageError(
            f"--into {folder}: can't be used: {error.strerror}; choose another folder"
        ) from error
    try:
        _run_exporter(tracker, folder, project, runs)
    except BaseException:
        # half of the curves could be mistaken for all, and would block the next attempt
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            with suppress(OSError):
                folder.mkdir()
        raise


def _run_exporter(tracker: str, folder: Path, project: str, runs: list[dict[str, Any]]) -> None:
    from distbench.ipc.launch_spec import WORKER_ARGUMENTS
    from distbench.record.run_folder import write_json
    from distbench.system.temporary import temporary_folder

    with temporary_folder() as scratch:
        file = scratch / "export.json"
        write_json(file, {"to": tracker, "into": str(folder), "project": project, "runs": runs})
        done = subprocess.run(
            [sys.executable, *WORKER_ARGUMENTS, "export", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else f"exited with code {done.returncode}"
        raise InfrastructureError(f"export to {tracker}: {why}")


def _subfolder(run: Run, name: str) -> Path:
    """Folder *name* of *run*, which may come from anybody.

    Raises:
        UsageError: it is a symbolic link, which may lead anywhere.
    """
    folder = run.folder / name
    if folder.is_symlink():
        raise UsageError(f"{folder}: a symbolic link, which is not followed; name its target with --into")
    return folder


def _is_installed(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
