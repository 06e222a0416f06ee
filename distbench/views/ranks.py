"""The view ``ranks``: how long each rank worked in each step, and who was waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.ranks import STRAGGLER_RATIO, RankStepTimes, notable_rank_times, rank_name
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.record import Record
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts.figures import GREY, Chart, escape_label, make_figure
from distbench.views.charts.palette import SEQUENTIAL_SCALE

_MAX_CASES = 4
_MAX_COLUMNS = 12
_MAX_NAMES = 16
_ROW, _HIGHEST = 22, 420
_MEANING = {
    "work_s": "A rank's own work in each profiled step: the step less the exposed waiting for other ranks.",
    "step_s": "Each timed step as each rank saw it, waiting for others included: no rank reported "
    "its own work.",
}
_RANGE = (0.8, 1.2)
"""Range as a fraction of the median; fixed, so an even trial looks even next to an uneven one."""


class RanksView(View):
    """A row for each rank of the few cases that are slowest or most uneven; a heatmap for each of them."""

    title = "Ranks"
    order = 100
    collapsed = True
    table_in_charts = True
    caption = (
        f"The {_MAX_CASES} slowest and most uneven cases. work: mean over the profiled steps of a rank's own "
        "work, or of the timed step where no rank reported its work. ratio: over that of the median rank, "
        "1 is best."
    )
    fields = (
        *CASE_FIELDS,
        Field("rank", "rank", "Rank, from 0 on.", type="bigint"),
        Field("node", "", "Node of the rank; null: the machine of the command.", type="varchar"),
        Field("gpu", "", "Number of its GPU on the node.", type="bigint"),
        Field("column", "of", "work_s, or step_s where no rank reported its work.", type="varchar"),
        Field("mean_s", "work", "Mean over the steps.", "s", "lower"),
        Field("ratio", "ratio", "Over the mean of the median rank.", "", "lower", format="{:.2f}".format),
    )

    def table(self, run: RunAnalysis) -> Table:
        # only the samples of these cases are read
        rows = [row for grid in notable_rank_times(run.cases, _MAX_CASES) for row in _rows(grid)]
        notes = [] if rows else ["No multi-rank case has per-step samples."]
        return self.make_table(rows, [*notes, *(each.sentence for each in run.stragglers)])

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        names = run.short_names([row for row in run.cases if row.measured])
        for i, grid in enumerate(notable_rank_times(run.cases, _MAX_CASES), start=1):
            yield _heatmap(grid, names[grid.row.case.id], i)

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """Stragglers, or else the slowest rank."""
        if run.stragglers:
            return " ".join(each.sentence for each in run.stragglers)
        slowest = max(table.rows, key=lambda row: row.value("ratio") or 0.0, default=None)
        if slowest is None:
            return ""
        ratio, case = slowest.value("ratio"), slowest.value("case_name")
        return f"Slowest rank: {ratio:.2f}x the median rank of {case} (flagged above {STRAGGLER_RATIO:g}x)."

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if there are stragglers."""
        return bool(run.stragglers)


def _rows(grid: RankStepTimes) -> list[TableRow]:
    return [
        TableRow(
            {
                **case_cells(grid.row.case),
                **_rank_cells(grid.row.representative_trial, rank),
                "column": grid.column,
                "mean_s": mean,
                "ratio": mean / grid.median,
            }
        )
        for rank, mean in grid.means.items()
    ]


def _rank_cells(record: Record | None, rank: int) -> dict[str, Any]:
    """Cells of *rank* and its location."""
    if record is None:
        return {"rank": rank}
    device = record.devices[rank] if rank < len(record.devices) else None
    return {
        "rank": TableCell(rank, rank_name(record, rank).removeprefix("rank ")),
        "node": TableCell(record.node_of(rank) or None, reason="it ran on the machine of the command"),
        "gpu": TableCell(device.index if device else None, reason="it used none, or its GPU is not recorded"),
    }


def _heatmap(grid: RankStepTimes, name: str, i: int) -> Chart:
    ranks = _rank_order(grid)
    seconds = [grid.seconds[rank] for rank in ranks]
    steps = max(map(len, seconds))
    trace = {
        "type": "heatmap",
        "z": [[None if s is None else s / grid.median for s in row] for row in seconds],
        "text": [["–" if s is None else f"{s * 1e3:.4g} ms" for s in row] for row in seconds],
        "x": list(range(1, steps + 1)),
        "y": list(range(len(ranks))),
        "zmin": _RANGE[0],
        "zmax": _RANGE[1],
        "colorscale": [[*each] for each in SEQUENTIAL_SCALE],
        "colorbar": {"title": {"text": "× median"}, "thickness": 10, "dtick": 0.2},
        "hovertemplate": "%{y}, step %{x}: %{text}, %{z:.2f} × the median<extra></extra>",
        "xgap": 2,
        "ygap": 1 if len(ranks) > _MAX_NAMES else 2,
    }
    return Chart(
        f"ranks-{i}",
        name,
        f"{_MEANING[grid.column]} A dark row is a slow rank, a dark column a slow step. The scale is "
        f"the same for all cases: {_RANGE[0]} to {_RANGE[1]} times the median rank's mean; values "
        "outside the scale are clipped.",
        make_figure([trace], "step", "", **_axes(grid, ranks, steps)),
        _step_table(seconds, ranks, min(steps, _MAX_COLUMNS)),
        finding=_finding(grid),
        height=min(_HIGHEST, 110 + _ROW * max(len(ranks), 3)),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _rank_order(grid: RankStepTimes) -> list[int]:
    """Ranks that have steps, grouped by node."""
    ranks = range(len(grid.seconds))
    record = grid.row.representative_trial
    nodes = group_by(ranks, record.node_of) if record else {"": [*ranks]}
    return [rank for of in nodes.values() for rank in of]


def _axes(grid: RankStepTimes, ranks: Sequence[int], steps: int) -> dict[str, Any]:
    """Axes with a line between nodes and a label for each rank, or for each node if there are many."""
    record = grid.row.representative_trial
    nodes = [record.node_of(rank) if record else "" for rank in ranks]
    first = [place for place, node in enumerate(nodes) if place == 0 or node != nodes[place - 1]]
    each = len(ranks) <= _MAX_NAMES or len(first) == 1
    named = [
        place for place in range(len(ranks)) if each and place % (1 + len(ranks) // _MAX_NAMES) == 0
    ] or first
    texts = [rank_name(record, ranks[place]) if record and each else nodes[place] for place in named]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1}}
    return {
        "xaxis": {"showgrid": False, **({"dtick": 1} if steps <= _MAX_COLUMNS else {})},
        "yaxis": {
            "showgrid": False,
            "autorange": "reversed",
            "tickvals": named,
            "ticktext": [escape_label(text) for text in texts],
        },
        "shapes": [{**line, "y0": place - 0.5, "y1": place - 0.5} for place in first[1:]],
    }


def _step_table(seconds: list[list[float | None]], ranks: Sequence[int], steps: int) -> Table:
    columns = [Field(f"step_{i + 1}", f"step {i + 1}, ms", unit="s", format=_ms) for i in range(steps)]
    names = Field("rank", "rank", type="bigint", format="rank {}".format)
    rows = [
        TableRow({"rank": rank, **{column.name: s for column, s in zip(columns, row, strict=False)}})
        for rank, row in zip(ranks, seconds, strict=True)
    ]
    return Table("", "", (names, *columns), tuple(rows))


def _finding(grid: RankStepTimes) -> str:
    if grid.column != "work_s":
        return ""
    slowest, mean = max(grid.means.items(), key=lambda item: item[1])
    name = (
        rank_name(grid.row.representative_trial, slowest)
        if grid.row.representative_trial
        else f"rank {slowest}"
    )
    excess = f"{mean / grid.median:.2f}x"
    if mean / grid.median >= STRAGGLER_RATIO:
        return f"Straggler in this trial: {name}, {excess} the work of the median rank."
    return f"No straggler: slowest is {name}, {excess} the median (flagged above {STRAGGLER_RATIO:g}x)."
