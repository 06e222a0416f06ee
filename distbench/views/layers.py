"""The view ``layers``: which layers of the model take the most time, and which roof limits them."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.layers import LayerStep, layer_steps
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_number
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells

_MOST_LAYERS = 8
_GIGA = 1e9
_NO_ROOFS = "the roofs were not measured: set metrics.utilisation.measure_peak: true"
_NO_LAYERS = (
    "No case has layers: they need the metric profile, measure.profile_steps of 1 or more, and a model that "
    "is not compiled."
)


def _ms(seconds: float) -> str:
    return format_number(seconds * 1e3)


def _giga(number: float) -> str:
    return format_number(number / _GIGA)


class LayersView(View):
    """Rows for the layers of each case that take the most time, with a row for all others."""

    title = "Layers"
    order = 26
    collapsed = True
    caption = (
        "Forward and backward pass of a profiled step on the rank where the layer takes the longest; * "
        "stands for numbers in the names of modules, and an operation counts to the innermost module. ms: "
        "time without communication; share: of that rank's layers. GFLOP/s and GB/s: reached in that time. "
        "FLOP/B: FLOPs per byte that the operations read and write, each for itself. roof: memory if FLOP/B "
        "is less than the best rate of a matmul over that of a copy, else compute (roofline model). A layer "
        "without matrix products has no FLOPs by torch's formulas."
    )
    fields = (
        *CASE_FIELDS,
        Field("layer", "layer", "Name of the modules, * for numbers.", type="varchar"),
        Field("kind", "", "Class of the modules.", type="varchar"),
        Field("modules", "", "Number of modules.", type="bigint"),
        Field("seconds", "ms", "Time of both passes in a profiled step.", "s", "lower", format=_ms),
        Field("share", "share", "Share of the time of all layers of the rank.", format="{:.0%}".format),
        Field("flops_per_s", "GFLOP/s", "FLOPs over time.", "FLOP/s", "higher", format=_giga),
        Field("bytes_per_s", "GB/s", "Bytes over time.", "B/s", format=_giga),
        Field("intensity", "FLOP/B", "FLOPs per byte.", format=format_number),
        Field("roof", "roof", "Roof that limits the layer: compute or memory.", type="varchar"),
    )

    def table(self, run: RunAnalysis) -> Table:
        known = [(row, layers) for row in run.cases if (layers := layer_steps(row.representative_trial))]
        names = run.short_names([row for row, _ in known])
        rows = [
            TableRow({**case_cells(row.case, names[row.case.id]), **cells})
            for row, layers in known
            for cells in _cells(row, layers)
        ]
        return self.make_table(rows, [] if rows else [_NO_LAYERS])

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """The layer that takes the largest share of the time of its case."""
        # a row of all others has no kind
        layers = [row for row in table.rows if row.value("kind")]
        most = max(layers, key=lambda row: row.value("share") or 0.0, default=None)
        if most is None:
            return ""
        layer, share, case = (most.value(name) for name in ("layer", "share", "case_name"))
        return f"Most time: {layer}, {share:.0%} of the time of all layers of {case}."


def _cells(row: CaseSummary, layers: list[LayerStep]) -> Iterator[dict[str, TableCell | str | float | None]]:
    matmul, copy = (
        row.values[name].value if name in row.values else None
        for name in ("matmul_flops", "copy_bytes_per_s")
    )
    for layer in layers[:_MOST_LAYERS]:
        roof = layer.roof(matmul, copy)
        yield {
            "layer": layer.name,
            "kind": layer.kind,
            "modules": layer.modules,
            "seconds": layer.seconds,
            "share": layer.share,
            "flops_per_s": layer.flops / layer.seconds if layer.flops and layer.seconds else None,
            "bytes_per_s": layer.bytes / layer.seconds if layer.bytes and layer.seconds else None,
            "intensity": layer.intensity or None,
            "roof": TableCell(roof, reason="" if roof else _NO_ROOFS),
        }
    if others := layers[_MOST_LAYERS:]:
        yield {
            "layer": f"{len(others)} others",
            "seconds": sum(layer.seconds for layer in others),
            "share": sum(layer.share for layer in others),
        }
