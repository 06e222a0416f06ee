"""``distbench history``: metrics over all runs below some folders."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    JsonOption,
    OutOption,
    argument,
    check_choice,
    option,
    parse_option,
)
from distbench.cli.output import (
    apply_style,
    print_json,
    print_note,
    print_text,
    print_warning,
    terminal_width,
)
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.text import join_limited, one_line
from distbench.core.units import parse_fraction

if TYPE_CHECKING:
    from distbench.analysis.history import HistoryRun
    from distbench.report.history import MetricHistory

# files with a run's numbers; logs and traces may be a hundred times as large
_FILE_SUFFIXES = (".json", ".parquet")
_COPY_ADVICE = (
    "or copy the bucket into a folder (aws s3 sync, gcloud storage rsync, rclone sync) and give that"
)


@reads_runs
def history(
    folders: Annotated[
        list[str] | None, argument("[FOLDER|BUCKET]...", "Folders with runs, at any depth; s3://...")
    ] = None,
    metric: Annotated[
        list[str],
        option("--metric", "NAME", "Metric, such as efficiency (default: tokens_per_s, or step_s)."),
    ] = [],
    case: Annotated[list[str], option("--case", "GLOB", "Only cases whose name or label matches GLOB.")] = [],
    least: Annotated[
        str, option("--least", "FRACTION", "Smallest change to report.", has_default=True)
    ] = "3%",
    since: Annotated[
        str, option("--since", "ID|DATE", "Also add up all changes since that run, to detect slow losses.")
    ] = "",
    html: Annotated[Path | None, option("--html", "FILE", "Also write a page with charts.")] = None,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    as_json: JsonOption = False,
) -> int:
    """Show metrics over runs, and where they changed."""
    from distbench.analysis.case_summary import THROUGHPUT
    from distbench.analysis.comparison import STEP
    from distbench.analysis.history import MIN_SHIFT, available_metrics
    from distbench.analysis.statistics import change_points
    from distbench.report import history_page
    from distbench.report.history import MetricHistory, history_json, history_text

    smallest = parse_option("--least", least, parse_fraction)
    if missing := change_points.missing_dependency():
        raise UsageError(f"history: change detection needs {missing}")
    with ExitStack() as opened:
        places = {opened.enter_context(_open_folder(name)): name for name in folders or [str(out)]}
        points, skipped = _load_points(places)
    known = available_metrics(points)
    if not known:
        raise UsageError(f"history: no run in {', '.join(places.values())} has a number yet")
    # traces tell no throughput
    usual = STEP if STEP in known and THROUGHPUT not in known else THROUGHPUT
    wanted = list(dict.fromkeys(metric)) or [usual]
    for name in wanted:
        check_choice("--metric", name, known)
    smallest = MIN_SHIFT if smallest is None else smallest
    start = _start_time(since, points) if since else None
    histories = [_filter_cases(MetricHistory.of(points, name, smallest, start), case) for name in wanted]
    if html:
        history_page.write(histories, skipped, html)
        print_note(f"history: {html}")
    if as_json:
        print_json([history_json(shown) for shown in histories])
    else:
        print_text("\n\n".join(history_text(shown, terminal_width(), apply_style) for shown in histories))
    return 0


def _start_time(text: str, points: Sequence[HistoryRun]) -> datetime:
    """Start time of the run whose id begins with *text*, or the date that *text* is."""
    made = {each.run_id: each.created for each in points if each.run_id.startswith(text)}
    if len(made) > 1:
        raise UsageError(f"--since = {text!r}: matches more than one run: {join_limited(sorted(made))}")
    if made:
        return next(iter(made.values()))
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        hint = did_you_mean(text, sorted({each.run_id for each in points}))
        raise UsageError(
            f"--since = {text!r}: neither the start of a run ID nor a date (2026-01-31); {hint}"
        ) from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _filter_cases(history: MetricHistory, globs: Sequence[str]) -> MetricHistory:
    """Keep the cases of *history* whose name or label matches one of the *globs*."""
    if not globs:
        return history
    for glob in globs:
        if not any(series.case.matches(glob) for series in history.histories):
            names = sorted({series.case.name for series in history.histories})
            raise UsageError(f"--case = {glob!r}: no such case in these runs; {did_you_mean(glob, names)}")
    kept = [series for series in history.histories if any(map(series.case.matches, globs))]
    return dataclasses.replace(history, histories=kept)


def _open_folder(name: str) -> AbstractContextManager[Path]:
    """Open the folder *name*, or a local copy of the bucket at that URL."""
    if "://" in name:
        return _download_bucket(name)
    folder = Path(name)
    if not folder.is_dir():
        raise UsageError(f"{name}: no such folder; history reads all runs below the given folders")
    return nullcontext(folder)


def _load_points(places: Mapping[Path, str]) -> tuple[list[HistoryRun], list[str]]:
    """Load every run in some folders, once; return the reasons why others can't be read.

    Args:
        places: Folder -> its name as given by the user.
    """
    from distbench.api.stored_runs import damage_lines, drop_copies, load_history_points
    from distbench.record import catalog

    points: list[HistoryRun] = []
    skipped: list[str] = []
    # a bucket may hold copies of local runs; one run is one point
    found, lines = drop_copies(
        {run.folder: run for place in places for run in catalog.runs_below(place)}.values()
    )
    for line in lines:
        print_warning(_user_path(line, places))
    for run, point in load_history_points(found):
        if isinstance(point, str):
            skipped.append(_user_path(point, places))
        else:
            for line in damage_lines(point.damaged, run.folder):
                print_warning(_user_path(line, places))
            points.append(point)
    for reason in skipped:
        print_warning(f"skipping a run: {reason}")
    if not points:
        where = ", ".join(places.values())
        raise UsageError(f"history: no {'readable ' if skipped else ''}run in {where}")
    return points, skipped


def _user_path(reason: str, places: Mapping[Path, str]) -> str:
    for folder, name in places.items():
        reason = reason.replace(str(folder), name)
    return one_line(reason)


@contextmanager
def _download_bucket(url: str) -> Iterator[Path]:
    """Download the numbers of the runs below *url*, such as ``s3://bucket/runs``; yield the folder.

    Raises:
        UsageError: the library for the bucket is missing, or the bucket can't be read.
    """
    from distbench.system.temporary import temporary_folder

    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f"{url}: reading a bucket needs fsspec: pip install fsspec, {_COPY_ADVICE}")
    with temporary_folder() as folder:
        try:
            _copy_files(url, folder)
        # each driver raises errors of its own classes
        except Exception as error:
            reason = one_line(str(error)) or type(error).__name__
            raise UsageError(f"{url}: can't be read: {reason}; fix that, {_COPY_ADVICE}") from error
        yield folder


def _copy_files(url: str, folder: Path) -> None:
    from fsspec.core import url_to_fs

    files, root = url_to_fs(url)
    wanted = {
        key: folder / key.removeprefix(root).lstrip("/")
        for key in files.find(root)
        if key.endswith(_FILE_SUFFIXES)
    }
    # a key may be anybody's choice: none may leave the folder
    safe = {key: place for key, place in wanted.items() if place.resolve().is_relative_to(folder)}
    print_note(f"history: copying {len(safe):,} files from {url}")
    for place in safe.values():
        place.parent.mkdir(parents=True, exist_ok=True)
    # one call, so that drivers which can copy many files at a time do so
    files.get(list(safe), list(map(str, safe.values())))
