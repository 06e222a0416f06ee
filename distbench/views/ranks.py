"""The view ``ranks``: how long each rank worked in each step, and who was waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distbench.analysis.ranks import STRAGGLER, Grid, grids
from distbench.analysis.run import AnalysedRun
from distbench.analysis.stragglers import rank_text
from distbench.record import Record
from distbench.report.figures import Chart, drawn
from distbench.report.sheet import Cell, Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells

_MOST = 4
_MOST_COLUMNS = 12
_MEANING = {
    "work_s": "A rank's own work in each profiled step: the step less the exposed waiting for other ranks.",
    "step_s": "Each timed step as each rank saw it, waiting for others included: no rank reported "
    "its own work.",
}
# one hue, light to dark: order must not rest on telling hues apart
_SCALE = [[0, "#DCEBF7"], [0.5, "#5BA3D0"], [1, "#08306B"]]


class RanksView(View):
    """A row for each rank of the few cases that are slowest or most uneven; a heatmap for each of them."""

    title = "Ranks"
    place = 100
    is_behind = True
    caption = (
        f"The {_MOST} slowest and most uneven cases. work: mean over the profiled steps of a rank's own "
        "work, or of the timed step where no rank reported its work. ratio: over that of the median rank, "
        "1 is best."
    )
    fields = (
        *CASE,
        Field("rank", "rank", "Rank, from 0 on.", type="bigint"),
        Field("node", "", "Node that it ran on; null: where the command did.", type="varchar"),
        Field("gpu", "", "Number of its GPU on the node.", type="bigint"),
        Field("column", "of", "work_s, or step_s where no rank reported its work.", type="varchar"),
        Field("mean_s", "work", "Mean over the steps.", "s", "lower"),
        Field("ratio", "ratio", "Over the mean of the median rank.", "", "lower", format="{:.2f}".format),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        # the samples of these cases are read, no others
        rows = [row for grid in grids(run.cases, _MOST) for row in _rows(grid)]
        notes = [] if rows else ["No case of several ranks has a sample of their steps."]
        return self.made(rows, [*notes, *(each.sentence for each in run.stragglers)])

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        names = run.names([row for row in run.cases if row.measured])
        for i, grid in enumerate(grids(run.cases, _MOST), start=1):
            yield _heatmap(grid, names[grid.row.case.id], i)


def _rows(grid: Grid) -> list[Row]:
    return [
        Row(
            {
                **case_cells(grid.row.case),
                **_place(grid.row.detail, rank),
                "column": grid.column,
                "mean_s": mean,
                "ratio": mean / grid.median,
            }
        )
        for rank, mean in grid.means.items()
    ]


def _place(record: Record | None, rank: int) -> dict[str, Any]:
    """Cells of *rank* and where it ran."""
    if record is None:
        return {"rank": rank}
    device = record.devices[rank] if rank < len(record.devices) else None
    return {
        "rank": Cell(rank, rank_text(record, rank).removeprefix("rank ")),
        "node": Cell(record.node_of(rank) or None, reason="it ran where the command did"),
        "gpu": Cell(device.index if device else None, reason="it used none, or the record does not say"),
    }


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
    layout: dict[str, Any] = {
        "xaxis": {"showgrid": False, **whole},
        "yaxis": {"showgrid": False, "autorange": "reversed", **whole},
    }
    return Chart(
        f"ranks-{i}",
        name,
        f"{_MEANING[grid.column]} A dark row is a slow rank, a dark column a slow step.",
        drawn([trace], "step", "rank", **layout),
        _by_step(z, min(steps, _MOST_COLUMNS)),
        finding=_finding(grid),
        height=min(560, 150 + 34 * max(len(z), 3)),
    )


def _by_step(z: list[list[float | None]], steps: int) -> Sheet:
    columns = [Field(f"step_{i + 1}", f"step {i + 1}, ms", format="{:.4g}".format) for i in range(steps)]
    names = Field("rank", "rank", type="bigint", format="rank {}".format)
    rows = [
        Row({"rank": rank, **{column.name: s for column, s in zip(columns, row, strict=False)}})
        for rank, row in enumerate(z)
    ]
    return Sheet("", "", (names, *columns), tuple(rows))


def _finding(grid: Grid) -> str:
    if grid.column != "work_s":
        return ""
    slowest, mean = max(grid.means.items(), key=lambda item: item[1])
    name = rank_text(grid.row.detail, slowest) if grid.row.detail else f"rank {slowest}"
    excess = f"{mean / grid.median:.2f}x"
    if mean / grid.median >= STRAGGLER:
        return f"Straggler in this trial: {name}, {excess} the work of the median rank."
    return f"No straggler: slowest is {name}, {excess} the median (flagged above {STRAGGLER:g}x)."
