"""Chart of traffic over each dimension of a device mesh, for cases with several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.mesh_dimensions import DimensionTraffic, dimension_traffic
from distbench.analysis.run import RunAnalysis
from distbench.report.axes import CaseAxis
from distbench.report.figures import Chart, ChartSelection, make_figure, stacked_bars
from distbench.report.palette import dimension_color
from distbench.report.view import CASE_FIELDS, case_cells
from distbench.tables.table import Field, Table, TableCell, TableRow

_MIB = 2**20
_FIELDS = (
    Field("dimension", "over", "Dimension of the device mesh.", type="varchar"),
    Field("op", "collective", "Operation that the strategy calls.", type="varchar"),
    Field("calls", "calls", "Calls per step.", format="{:g}".format),
    Field(
        "calls_theory",
        "calls, theory",
        "Calls per step by the strategy's communication model.",
        format="{:g}".format,
    ),
    Field("measured", "measured", "Payload per step.", "B", "lower"),
    Field("theory", "theory", "Payload per step by the strategy's communication model.", "B", "lower"),
)
_NO_CALLS = "theory gives no number of calls"


def charts(run: RunAnalysis) -> Iterator[Chart]:
    """Chart of the traffic, if any case has traffic over more than one dimension."""
    shown = ChartSelection.fastest(run, _traffic_by_dimension)
    if not shown.items:
        return
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    rows = [
        TableRow({**case_cells(row.case, name), **_traffic_cells(each)})
        for row, name, of in shown.items
        for each in of
    ]
    yield Chart(
        "communication-mesh",
        "Volume by mesh dimension",
        "Payload of a rank per step, by the dimension of the device mesh over which it moves: "
        "dp_replicate between copies of the model, dp_shard between its shards, tp inside its layers, "
        "pp between its stages. Lower is better; the inner dimensions (tp) need the fastest links. The "
        f"table has each collective with its number of calls, next to theory.{shown.truncation_note}",
        make_figure(_bars(shown, axis), "MiB per step (lower is better)", rows=axis.labels, barmode="stack"),
        Table("", "", (*CASE_FIELDS, *_FIELDS), tuple(rows)),
    )


def _traffic_by_dimension(row: CaseSummary) -> list[DimensionTraffic] | None:
    """Traffic over each dimension; None if there is only one, or they are unknown."""
    of = dimension_traffic(row.representative_trial) if row.representative_trial else []
    return of if len({each.dimension for each in of}) > 1 else None


def _traffic_cells(each: DimensionTraffic) -> dict[str, Any]:
    calls = TableCell(each.calls_theory, reason="" if each.calls_theory is not None else _NO_CALLS)
    return {
        "dimension": each.dimension,
        "op": each.op,
        "calls": each.calls,
        "calls_theory": calls,
        "measured": each.measured,
        "theory": each.theory,
    }


def _bars(shown: ChartSelection[list[DimensionTraffic]], axis: CaseAxis) -> list[dict[str, Any]]:
    names = sorted({each.dimension for *_, of in shown.items for each in of})
    rows = [
        TableRow({**case_cells(row.case, name), **{over: _dimension_bytes(of, over) for over in names}})
        for row, name, of in shown.items
    ]
    fields = tuple(Field(over, over, unit="B") for over in names)
    table = Table("", "", (*CASE_FIELDS, *fields), tuple(rows))
    colours = {over: dimension_color(over) for over in names}
    return stacked_bars(table, {over: over for over in names}, colours, _MIB, places=axis.positions)


def _dimension_bytes(of: list[DimensionTraffic], over: str) -> float | None:
    sizes = [each.measured for each in of if each.dimension == over]
    return sum(sizes) if sizes else None
