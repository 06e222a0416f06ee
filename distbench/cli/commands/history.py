"""``distbench history``: metrics over all runs below some folders."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from distbench.analysis.case_summary import THROUGHPUT
from distbench.analysis.history import LEAST, Occasion, metrics
from distbench.analysis.statistics import change_points
from distbench.cli.colour import paint
from distbench.cli.copies import once
from distbench.cli.history_inputs import occasions as read
from distbench.cli.options import REPORTS, Json, Out, argument, check_word, option, parsed
from distbench.cli.output import note, say, say_json, width
from distbench.cli.readers import reads_runs
from distbench.cli.reading import damage
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.text import listed, one_line
from distbench.core.units import parse_fraction
from distbench.record import catalog
from distbench.report import history_page
from distbench.report.history_view import History, text, to_json
from distbench.system.temporary import temporary_folder

# files with a run's numbers; logs and traces may be a hundred times as large
_WANTED = (".json", ".parquet")
_ELSE = "or copy the bucket into a folder (aws s3 sync, gcloud storage rsync, rclone sync) and give that"


@reads_runs
def history(
    folders: Annotated[
        list[str] | None, argument("[FOLDER|BUCKET]...", "Where the runs are, at any depth; s3://...")
    ] = None,
    metric: Annotated[
        list[str], option("--metric", "NAME", "Such as efficiency (default: tokens_per_s).")
    ] = [],
    case: Annotated[list[str], option("--case", "GLOB", "Only cases whose name or label matches GLOB.")] = [],
    least: Annotated[
        str, option("--least", "FRACTION", "Smallest change to report.", has_default=True)
    ] = "3%",
    since: Annotated[
        str, option("--since", "ID|DATE", "Also add up all changes since that run: losses that creep.")
    ] = "",
    html: Annotated[Path | None, option("--html", "FILE", "Also write a page with charts.")] = None,
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Show metrics over runs, and where they changed."""
    smallest = parsed("--least", least, parse_fraction)
    if missing := change_points.missing():
        raise UsageError(f"history: finding changes needs {missing}")
    with ExitStack() as opened:
        places = {opened.enter_context(_opened(name)): name for name in folders or [str(out)]}
        occasions, skipped = _read(places)
    known = metrics(occasions)
    wanted = list(dict.fromkeys(metric)) or [THROUGHPUT]
    for name in wanted:
        check_word("--metric", name, known)
    smallest = LEAST if smallest is None else smallest
    start = _start(since, occasions) if since else None
    histories = [_only(History.of(occasions, name, smallest, start), case) for name in wanted]
    if html:
        history_page.write(histories, skipped, html)
        note(f"history: {html}")
    if as_json:
        say_json([to_json(shown) for shown in histories])
    else:
        say("\n\n".join(text(shown, width(), paint) for shown in histories))
    return 0


def _start(text: str, occasions: Sequence[Occasion]) -> datetime:
    """When the run was made whose id begins with *text*, or the date that it is."""
    made = {each.run_id: each.created for each in occasions if each.run_id.startswith(text)}
    if len(made) > 1:
        raise UsageError(f"--since = {text!r}: matches more than one run: {listed(sorted(made))}")
    if made:
        return next(iter(made.values()))
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        hint = did_you_mean(text, sorted({each.run_id for each in occasions}))
        raise UsageError(
            f"--since = {text!r}: neither the start of the id of a run here nor a date (2026-01-31); {hint}"
        ) from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _only(history: History, globs: Sequence[str]) -> History:
    """*history* of the cases whose name or label matches one of the *globs*."""
    if not globs:
        return history
    for glob in globs:
        if not any(series.case.matches(glob) for series in history.series):
            names = sorted({series.case.name for series in history.series})
            raise UsageError(f"--case = {glob!r}: no such case in these runs; {did_you_mean(glob, names)}")
    kept = [series for series in history.series if any(map(series.case.matches, globs))]
    return dataclasses.replace(history, series=kept)


def _opened(name: str) -> AbstractContextManager[Path]:
    """The folder *name*, or a copy of the bucket of that URL."""
    if "://" in name:
        return _fetched(name)
    folder = Path(name)
    if not folder.is_dir():
        raise UsageError(f"{name}: no such folder; history reads all runs below the given folders")
    return nullcontext(folder)


def _read(places: Mapping[Path, str]) -> tuple[list[Occasion], list[str]]:
    """Every run in some folders, once, and why others can't be read.

    Args:
        places: Folder -> what the user calls it.
    """
    occasions: list[Occasion] = []
    skipped: list[str] = []
    # a bucket may hold copies of local runs; one run is one point
    found, lines = once({run.folder: run for place in places for run in catalog.below(place)}.values())
    for line in lines:
        note(f"distbench: warning: {_as_called(line, places)}")
    for run, occasion in zip(found, read(found), strict=True):
        if isinstance(occasion, str):
            skipped.append(_as_called(occasion, places))
        else:
            for line in damage(occasion.damaged, run.folder):
                note(f"distbench: warning: {_as_called(line, places)}")
            occasions.append(occasion)
    for reason in skipped:
        note(f"distbench: warning: skipping a run: {reason}")
    if not occasions:
        where = ", ".join(places.values())
        raise UsageError(f"history: no {'readable ' if skipped else ''}run in {where}")
    return occasions, skipped


def _as_called(reason: str, places: Mapping[Path, str]) -> str:
    for folder, name in places.items():
        reason = reason.replace(str(folder), name)
    return one_line(reason)


@contextmanager
def _fetched(url: str) -> Iterator[Path]:
    """Folder with the numbers of the runs below *url*, such as ``s3://bucket/runs``.

    Raises:
        UsageError: the library for the bucket is missing, or the bucket can't be read.
    """
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f"{url}: reading a bucket needs fsspec: pip install fsspec, {_ELSE}")
    with temporary_folder() as folder:
        try:
            _copied(url, folder)
        # each driver raises errors of its own classes
        except Exception as error:
            reason = one_line(str(error)) or type(error).__name__
            raise UsageError(f"{url}: can't be read: {reason}; fix that, {_ELSE}") from error
        yield folder


def _copied(url: str, folder: Path) -> None:
    from fsspec.core import url_to_fs

    files, root = url_to_fs(url)
    wanted = {
        key: folder / key.removeprefix(root).lstrip("/") for key in files.find(root) if key.endswith(_WANTED)
    }
    # anybody may have chosen a key: none may lead out of the folder
    safe = {key: place for key, place in wanted.items() if place.resolve().is_relative_to(folder)}
    note(f"history: copying {len(safe):,} files from {url}")
    for place in safe.values():
        place.parent.mkdir(parents=True, exist_ok=True)
    # one call, so that drivers that can copy many files at a time do
    files.get(list(safe), list(map(str, safe.values())))
