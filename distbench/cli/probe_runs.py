"""Runs with probes, as ``--rates`` names them."""

from __future__ import annotations

from pathlib import Path

from distbench.core.errors import UsageError
from distbench.core.job import job_kind
from distbench.prediction.probed_rates import PROBE
from distbench.record.catalog import find_run, runs_in
from distbench.record.run_folder import Run


def find_probe_run(rates: str, out: Path) -> Run:
    """Run with a probe that *rates* denotes in *out*.

    Raises:
        UsageError: there is no such run, or it has no probe.
    """
    run = find_run(rates, out)
    if not _has_probe(run):
        raise UsageError(f"--rates {rates}: the run has no probe; distbench probe SUITE measures one")
    return run


def newest_probe_run(out: Path) -> Run:
    """Newest run with a probe in *out*.

    Raises:
        UsageError: there is none.
    """
    probes = [run for run in runs_in(out) if _has_probe(run)]
    if not probes:
        raise UsageError(
            f"--predict: {out} has no run with a probe; measure the rates of a machine there with distbench "
            "probe SUITE, name a run with --rates RUN, or name GPUs with --on TYPE:NODESxGPUS"
        )
    # names end with the time of the start and the ID
    return max(probes, key=lambda run: run.folder.name.split("-")[-3:])


def _has_probe(run: Run) -> bool:
    return bool(run.recorded_trials_of(job_kind(PROBE)))
