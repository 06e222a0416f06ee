"""Find runs by folder, ID or name, and the usual durations of their trials."""

import difflib
import os
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from distbench.core.errors import RecordError, UsageError
from distbench.core.grouping import group_pairs
from distbench.core.job import MEASURE, job_kind
from distbench.core.measurement import MeasureConfig
from distbench.core.serialization import decode
from distbench.core.units import format_count
from distbench.record import Status, check_format, read_json
from distbench.record.record_reader import RECORD_FILE
from distbench.record.run_folder import RUN_FILE, SUBMISSION_FOLDER, Run
from distbench.system.files import folders

ESTIMATE_PREFIX = ".estimate-"
"""Prefix of the folder for the run of an estimate, inside a folder that holds runs."""
_GATE_ARMS = {"baseline", "candidate"}
_STEP_COUNTS = ("warmup", "steps", "profile_steps", "check_steps", "unsynced_steps")


def find_run(name: str, out: Path) -> Run:
    """Find the run that *name* denotes: a folder, or the start of a run's ID or folder name in *out*.

    Raises:
        UsageError: no run matches, or more than one, or the folder holds several.
    """
    folder = Path(name)
    if folder.name == RUN_FILE:
        folder = folder.parent
    if folder.is_dir():
        if not (folder / RUN_FILE).exists() and (several := runs_in(folder)):
            held = f"{format_count(len(several), 'run')}, such as {several[-1].folder.name}"
            raise UsageError(f"{name}: holds {held}; list them with: distbench runs {shlex.quote(name)}")
        return Run(folder)
    known = sorted([*runs_in(out), *submitted_runs(out)], key=lambda run: run.folder)
    matches = [run for run in known if run.folder.name.startswith(name) or _id(run).startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"{name}: matches more than one run: {', '.join(run.folder.name for run in matches)}"
        )
    if folder.is_file():
        hint = "; to read a table beside those of a run: distbench query SQL RUN --table NAME=FILE"
        raise UsageError(
            f"{name}: a file, not a run's folder{'' if folder.suffix in ('.yaml', '.yml') else hint}"
        )
    raise UsageError(f"{name}: no such run in {out}; {_hint(name, known)}")


def find_run_strict(name: str, out: Path) -> Run | None:
    """Find the run that *name* denotes unambiguously; None if there is none.

    That is its folder, or 4 to 8 digits that begin one ID in *out*. Stricter than ``find_run``: the name of a
    git revision or a Python environment must not be taken for a run.
    """
    if name and (Path(name) / RUN_FILE).is_file():
        return Run(Path(name))
    if not re.fullmatch(r"[0-9a-f]{4,8}", name):
        return None
    matches = [run for run in runs_in(out) if _id(run).startswith(name)]
    return matches[0] if len(matches) == 1 else None


def runs_in(out: Path) -> list[Run]:
    """Runs whose folders lie directly in *out*, by name."""
    return [Run(folder) for folder in folders(out) if os.path.lexists(folder / RUN_FILE)]


def median_durations(
    out: Path, wanted: Iterable[tuple[str, str]], measure: MeasureConfig
) -> dict[tuple[str, str], float]:
    """Median seconds of measured trials in the runs of *out*, for each *wanted* kind of job and case id.

    Durations of timed trials with other numbers of steps are scaled to those of *measure*.
    """
    by_kind = {kind: set(case_ids) for kind, case_ids in group_pairs(wanted).items()}
    times = group_pairs(
        ((kind, case_id), seconds)
        for run in runs_in(out)
        for kind, case_ids in by_kind.items()
        for case_id, seconds in _trial_durations(run, kind, case_ids, measure)
    )
    return {trial: median(seconds) for trial, seconds in times.items()}


def _trial_durations(
    run: Run, kind: str, case_ids: Container[str], requested: MeasureConfig
) -> Iterator[tuple[str, float]]:
    """Case ID and seconds of each measured trial of *kind* in *run*; unreadable records are skipped."""
    recorded = _measure_config(run)
    if recorded is None:
        return
    for folder in run.recorded_trials_of(job_kind(kind)):
        case_id = folder.parent.name.rpartition("-")[2]
        if case_id not in case_ids:
            continue
        with suppress(RecordError, KeyError, TypeError, ValueError):
            file = folder / RECORD_FILE
            data = read_json(file)
            check_format(data, str(file))
            if data["status"] == Status.MEASURED:
                yield case_id, _scaled_duration(data, recorded if kind == MEASURE else requested, requested)


def _measure_config(run: Run) -> MeasureConfig | None:
    """Measurement settings of the cases of *run*; None: ``run.json`` can't be read."""
    file = run.folder / RUN_FILE
    with suppress(RecordError, KeyError, TypeError):
        return decode(MeasureConfig, read_json(file)["suite"][MEASURE], str(file))
    return None


def _scaled_duration(record: Mapping[str, Any], recorded: MeasureConfig, requested: MeasureConfig) -> float:
    """Seconds from launch to end that the timed trial *record* would have taken as *requested*.

    Launch and building stay as they were. Each additional or missing step counts as the mean of the timed
    ones, whatever its purpose: one under the profiler takes somewhat longer.

    Args:
        record: Plain content of ``record.json``.
        recorded: How it was measured.

    Raises:
        KeyError, TypeError, ValueError: the record does not contain the times.
    """
    more = sum(getattr(requested, key) - getattr(recorded, key) for key in _STEP_COUNTS)
    seconds = float(record["wall_s"])
    return seconds + more * max(record["phases"]["time"]) / recorded.steps if more else seconds


def submitted_runs(out: Path) -> list[Run]:
    """Runs in *out* that were submitted to an engine and have not begun."""
    every = (folder for folder in folders(out) if (folder / SUBMISSION_FOLDER / "request.json").exists())
    return [Run(folder) for folder in every if not (folder / RUN_FILE).exists()]


def runs_below(folder: Path) -> Iterator[Run]:
    """Yield the runs below *folder*, at any depth.

    Only the candidate of a gate counts: its baseline ran next to it, and would be a second run of that day.
    """
    for place, inner, files in os.walk(folder.resolve()):
        if RUN_FILE in files:
            # no run contains another; its trials are many
            inner.clear()
            yield Run(Path(place))
        elif _GATE_ARMS.issubset(inner):
            inner.remove("baseline")
        # a killed estimate leaves such a folder, whose trials are no results
        inner[:] = sorted(name for name in inner if not name.startswith(ESTIMATE_PREFIX))


def is_gate_arm(run: Run) -> bool:
    """True if *run* is one of the two of a gate."""
    return run.folder.name in _GATE_ARMS and all((run.folder.parent / arm).is_dir() for arm in _GATE_ARMS)


def _id(run: Run) -> str:
    return run.folder.name.rpartition("-")[2]


def _hint(name: str, known: list[Run]) -> str:
    names = [run.folder.name for run in known]
    ids = {_id(run): run.folder.name for run in known}
    if near := difflib.get_close_matches(name, [*ids, *names], n=1):
        return f"did you mean {ids.get(near[0], near[0])}?"
    # sorted by start time, which their names have before the id
    latest = sorted(names, key=lambda each: each.split("-")[-3:])
    return f"the latest: {', '.join(latest[-5:])}" if names else "the folder contains no runs"
