"""``distbench history``: metrics over all runs below some folders."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

from distbench.analysis.history import LEAST, Occasion, Series, metrics
from distbench.analysis.summary import THROUGHPUT, summarise
from distbench.analysis.text import one_line
from distbench.cli.buckets import fetched
from distbench.cli.printing import note, say, say_json, width
from distbench.errors import DistbenchError, UsageError, did_you_mean
from distbench.report import history_page
from distbench.report.history_view import History, table, to_json
from distbench.report.tables import as_text
from distbench.store import Run
from distbench.units import parse_fraction

_RUN_FILE = "run.json"
_GATE_ARMS = {"baseline", "candidate"}
# what a record of another tool may make of code that expects ours: kinds of values, depths, sizes
_FOREIGN = (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, OSError)


def recall_runs(
    names: Sequence[str],
    *,
    wanted: Sequence[str],
    globs: Sequence[str],
    least: str,
    html: Path | None,
    out: Path,
    as_json: bool,
) -> int:
    """Print each of the *wanted* metrics over the runs in some folders, and write it to *html* if given.

    Raises:
        UsageError: no run there that can be read, no such metric or case, or a fraction that is none.
        InfrastructureError: the page can't be written.
    """
    smallest = _fraction(least)
    if importlib.util.find_spec("ruptures") is None:
        raise UsageError("history: finding steps takes ruptures, which is not here: pip install ruptures")
    with ExitStack() as opened:
        places = {opened.enter_context(_opened(name)): name for name in names or [str(out)]}
        occasions, skipped = _read(places)
    known = metrics(occasions)
    asked = list(dict.fromkeys(wanted)) or [THROUGHPUT]
    for metric in asked:
        if metric not in known:
            raise UsageError(f"--metric = {metric!r}: {did_you_mean(metric, known)}")
    made = [_only(History.of(occasions, metric, smallest), globs) for metric in asked]
    if html:
        history_page.write(made, skipped, html)
        note(f"history: {html}")
    if as_json:
        say_json([to_json(each) for each in made])
    else:
        say("\n\n".join(as_text(table(each), width()) for each in made))
    return 0


def _only(made: History, globs: Sequence[str]) -> History:
    """Return *made* with those cases only whose name or label one of the *globs* matches."""
    if not globs:
        return made
    kept = [each for each in made.series if any(_matches(each, glob) for glob in globs)]
    if not kept:
        there = sorted({each.case.name for each in made.series})
        raise UsageError(f"--case = {globs[0]!r}: no case of these runs; {did_you_mean(globs[0], there)}")
    return dataclasses.replace(made, series=kept)


def _matches(series: Series, glob: str) -> bool:
    return fnmatchcase(series.case.name, glob) or fnmatchcase(series.case.label, glob)


def _fraction(text: str) -> float:
    try:
        return parse_fraction(text) if text else LEAST
    except ValueError as error:
        raise UsageError(f"--least = {text!r}: {error}") from None


def _opened(name: str) -> AbstractContextManager[Path]:
    """Return what yields the folder that *name* is, or a copy of the bucket that it is."""
    if "://" in name:
        return fetched(name)
    folder = Path(name)
    if not folder.is_dir():
        raise UsageError(f"{name}: no such folder; history reads all runs in the folders that it is given")
    return nullcontext(folder)


def _read(places: Mapping[Path, str]) -> tuple[list[Occasion], list[str]]:
    """Return every run in some folders once, and why some could not be read.

    Args:
        places: Folder -> what the user calls it.
    """
    found: dict[tuple[str, str], Occasion] = {}
    skipped: list[str] = []
    for folder in dict.fromkeys(run for each in places for run in _runs(each)):
        try:
            occasion = _occasion(Run(folder))
        except DistbenchError as error:
            skipped.append(_as_called(str(error), places))
        except _FOREIGN as error:
            skipped.append(_as_called(f"{folder / _RUN_FILE}: not a readable run: {error!r}", places))
        else:
            # a bucket may hold a copy of what is here; one run is one point
            found.setdefault((occasion.run_id, occasion.created.isoformat()), occasion)
    for why in skipped:
        note(f"distbench: warning: a run is left out: {why}")
    if not found:
        where = ", ".join(places.values())
        raise UsageError(f"history: no run in {where}" + (" that can be read" if skipped else ""))
    return list(found.values()), skipped


def _as_called(why: str, places: Mapping[Path, str]) -> str:
    for folder, name in places.items():
        why = why.replace(str(folder), name)
    return one_line(why)


def _runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs in *folder*, at any depth.

    Of a gate the candidate counts: its baseline was run beside it, and would be a second point of one day.
    """
    for place, inner, files in os.walk(folder.resolve()):
        if _RUN_FILE in files:
            # no run lies in another; what does is its trials, which are many
            inner.clear()
            yield Path(place)
        elif _GATE_ARMS.issubset(inner):
            inner.remove("baseline")
        inner.sort()


def _occasion(run: Run) -> Occasion:
    info = run.info()
    # samples are of no use here, and loading those of a hundred runs takes its time
    records = [
        dataclasses.replace(each, samples={}, warmup_losses=[]) if each.job.kind == "measure" else each
        for each in run.records()
    ]
    return Occasion.of(info, summarise(info, records))
