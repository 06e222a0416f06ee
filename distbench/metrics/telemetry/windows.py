"""Reduce samples to a time window: differences of counters, and means."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from distbench.metrics.base import NotAvailable
from distbench.metrics.telemetry.sampler import Row

Window = tuple[float, float]


def enclosing_samples(rows: Sequence[Row], window: Window) -> tuple[Row, Row]:
    """Last row before *window* and first row after it; their difference covers all of it.

    Raises:
        NotAvailable: no two samples reach into the window.
    """
    begin, end = window
    first = next((row for row in reversed(rows) if row["at"] <= begin), rows[0] if rows else None)
    last = next((row for row in rows if row["at"] >= end), rows[-1] if rows else None)
    if first is None or last is None or not first["at"] < last["at"] or first["at"] > end:
        raise NotAvailable(f"none of the {len(rows)} samples enclose the timed window")
    return first, last


def samples_in(rows: Sequence[Row], window: Window) -> list[Row]:
    """Rows within *window*; if it is too short to contain any, the two around it.

    Raises:
        NotAvailable: no two samples reach into the window.
    """
    begin, end = window
    return [row for row in rows if begin <= row["at"] <= end] or list(enclosing_samples(rows, window))


def mean_in_window(rows: Sequence[Row], name: str, window: Window) -> float:
    """Mean of reading *name* over *window*.

    Raises:
        NotAvailable: there is none.
    """
    return statistics.fmean(row[name] for row in samples_in(samples_with(rows, name), window))


def samples_with(rows: Sequence[Row], name: str, source: str = "") -> list[Row]:
    """Rows that have reading *name*.

    Raises:
        NotAvailable: no row has it; with the reason that the sampler gave for it or for its whole *source*.
    """
    holding = [row for row in rows if row.get(name) is not None]
    if not holding:
        reasons = (row["reason"] for row in rows if row.get("absent") in (name, source))
        raise NotAvailable(next(reasons, "not in any sample"))
    return holding


def counter_increase(rows: Sequence[Row], name: str, window: Window) -> float:
    """Growth of counter *name* in *window*, interpolated linearly around its ends.

    Raises:
        NotAvailable: the samples don't reach over both ends.
    """
    begin, end = (_interpolate(samples_with(rows, name), name, moment) for moment in window)
    return end - begin


def _interpolate(rows: Sequence[Row], name: str, moment: float) -> float:
    for before, after in itertools.pairwise(rows):
        if before["at"] <= moment <= after["at"]:
            part = (moment - before["at"]) / (after["at"] - before["at"])
            return float(before[name] + part * (after[name] - before[name]))
    raise NotAvailable("the samples do not cover the timed window")
