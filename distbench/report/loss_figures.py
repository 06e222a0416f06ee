"""The charts of the training loss over steps, tokens and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.progress import Progress, progress
from distbench.analysis.summary import CaseSummary
from distbench.report.figures import Chart, Shown, Style, drawn, safe

_MOST_POINTS = 200
_STEPS_SHOWN = 10
_WHAT = (
    "Training loss, mean over ranks, of the first trial of each case that counts, from the first warm-up "
    "step on; lower is better."
)
_SEE = {
    "steps": "Strategies that do the same work lie on one line.",
    "tokens": "Here cases with another batch compare too: what they have learnt from as much data.",
    "seconds": "The line that falls first learns most in the time it is given. The first step may compile.",
}


def charts(cases: Sequence[CaseSummary], style: Style) -> list[Chart]:
    """Return a chart for each of steps, tokens and seconds that is known."""
    rows = [row for row in cases if any(loss is not None for loss in row.losses)]
    if not rows:
        return []
    shown = Shown.of(rows, cases)
    found = [(row, progress(row)) for row in shown.rows]
    return [
        _chart(axis, found, shown, style)
        for axis in _SEE
        if axis == "steps" or any(_places(of, axis) for _, of in found)
    ]


def _chart(axis: str, found: list[tuple[CaseSummary, Progress]], shown: Shown, style: Style) -> Chart:
    traces = [
        _line(row, shown.names[row.case.id], _places(of, axis), style, i)
        for i, (row, of) in enumerate(found)
        if _places(of, axis)
    ]
    steps = _some(max(len(row.losses) for row in shown.rows))
    return Chart(
        f"loss-{axis}",
        f"Loss over {axis}",
        f"{_WHAT} {_SEE[axis]}{shown.left_out}",
        drawn(traces, axis, "loss", xaxis={"rangemode": "tozero"}),
        ["case", *(f"step {step}" for step in steps)],
        [
            [shown.names[row.case.id], *(_cell(row, _places(of, axis), axis, step) for step in steps)]
            for row, of in found
            if _places(of, axis)
        ],
    )


def _places(of: Progress, axis: str) -> Sequence[float]:
    if axis == "steps":
        return range(1, len(of.losses) + 1)
    return of.tokens if axis == "tokens" else of.seconds


def _line(row: CaseSummary, name: str, places: Sequence[float], style: Style, i: int) -> dict[str, Any]:
    every = -(-len(row.losses) // _MOST_POINTS)
    # the last step is always among them
    kept = range(len(row.losses))[::-1][::every][::-1]
    return {
        "type": "scatter",
        "mode": "lines" if len(kept) > 1 else "markers",
        "name": safe(name),
        "x": [places[at] for at in kept],
        "y": [row.losses[at] for at in kept],
        "customdata": [row.case.id for _ in kept],
        "line": style.line(row.case.strategy.name, i),
        "marker": style.marker(row.case.strategy.name),
    }


def _some(count: int) -> list[int]:
    """Return the first, the last and evenly spread steps between: enough for a table."""
    shown = min(count, _STEPS_SHOWN)
    return [1 + round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]


def _cell(row: CaseSummary, places: Sequence[float], axis: str, step: int) -> str:
    loss = row.losses[step - 1] if step <= len(row.losses) else None
    if loss is None:
        return "–"
    return f"{loss:.5g}" if axis == "steps" else f"{loss:.5g} at {places[step - 1]:.4g}"
