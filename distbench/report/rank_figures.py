"""The heatmaps of ranks: how long each worked in each step, and who was waited for."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.parity import marked_names
from distbench.analysis.ranks import STRAGGLER, Grid, grids
from distbench.analysis.summary import CaseSummary
from distbench.report.figures import Chart, drawn

_MOST = 4
_MOST_COLUMNS = 12
_MEANING = {
    "work_s": "A rank's own work in each profiled step: the step less the exposed waiting for other ranks.",
    "step_s": "Each timed step as each rank saw it, waiting for others included: no rank told of "
    "its own work.",
}
# one hue, light to dark: order must not rest on telling hues apart
_SCALE = [[0, "#DCEBF7"], [0.5, "#5BA3D0"], [1, "#08306B"]]


def charts(cases: Sequence[CaseSummary]) -> list[Chart]:
    """Return a heatmap for each of the few cases worth a look; their samples are read, no others."""
    found = grids(cases, _MOST)
    names = marked_names([row for row in cases if row.measured], cases)
    return [_heatmap(grid, names[grid.case_id], i) for i, grid in enumerate(found, start=1)]


def _heatmap(grid: Grid, name: str, i: int) -> Chart:
    steps = max(map(len, grid.seconds))
    z = [[None if s is None else s * 1e3 for s in row] for row in grid.seconds]
    whole = {"dtick": 1} if max(steps, len(z)) <= _MOST_COLUMNS else {}
    trace = {
        "type": "heatmap",
        "z": z,
        "x": list(range(1, steps + 1)),
        "y": list(range(len(z))),
        "colorscale": _SCALE,
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
        "hovertemplate": "rank %{y}, step %{x}: %{z:.4g} ms<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    layout = {
        "xaxis": {"showgrid": False, **whole},
        "yaxis": {"showgrid": False, "autorange": "reversed", **whole},
    }
    shown = range(min(steps, _MOST_COLUMNS))
    return Chart(
        f"ranks-{i}",
        name,
        f"{_MEANING[grid.column]} A dark row is a slow rank, a dark column a slow step.",
        drawn([trace], "step", "rank", **layout),
        ["rank", *(f"step {step + 1}, ms" for step in shown)],
        [
            [f"rank {rank}", *(_cell(row[step] if step < len(row) else None) for step in shown)]
            for rank, row in enumerate(z)
        ],
        told=_told(grid),
        height=min(560, 150 + 34 * max(len(z), 3)),
    )


def _told(grid: Grid) -> str:
    if grid.column != "work_s":
        return ""
    if grid.straggler:
        return f"Straggler: rank {grid.slowest}, {grid.excess:.2f} times the work of the median rank."
    return (
        f"No straggler: rank {grid.slowest} works longest, {grid.excess:.2f} times as long as the median "
        f"rank (named from {STRAGGLER:g} on)."
    )


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
