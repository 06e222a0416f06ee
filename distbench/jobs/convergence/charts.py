"""Charts of trainings to a target: curves over steps, tokens and seconds, with the target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, TypeVar

from distbench.core.units import format_number
from distbench.jobs.convergence.trainings import FinishedTraining, TrainingGroup
from distbench.jobs.convergence.verdict import ConvergenceEvidence
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, case_cells
from distbench.views.charts.figures import CaseStyle, Chart, make_figure, reference_line, scatter

T = TypeVar("T")

_AXES = {
    "step": "optimizer steps",
    "tokens": "tokens",
    "samples": "samples",
    "seconds": "seconds of training",
}
REFERENCE_NAME = "reference (single)"
"""Name of a reference in charts."""
_MAX_POINTS = 200
_MAX_COLUMNS = 8


def charts(
    groups: Sequence[list[ConvergenceEvidence]], names: dict[str, str], style: CaseStyle
) -> list[Chart]:
    """Charts of each of *groups*: cases with the same reference."""
    return [
        chart
        for number, same in enumerate(groups, start=1)
        if any(group.trainings for group in (same[0].reference, *(each.group for each in same)))
        for chart in _Curves(number, same, names, style).charts()
    ]


class _Curves:
    """Charts of one reference and its cases."""

    def __init__(
        self, number: int, same: list[ConvergenceEvidence], names: dict[str, str], style: CaseStyle
    ) -> None:
        self._number, self._merit, self._style = number, same[0].merit, style
        self._groups = [
            (REFERENCE_NAME, same[0].reference),
            *((names[each.case_id], each.group) for each in same),
        ]
        case = same[0].reference.case
        self._of = f"{case.workload.name} on {case.data.name}, global batch {case.batch.global_batch_size}"
        self._curve = next(group.trainings[0].curve for _, group in self._groups if group.trainings)

    def charts(self) -> list[Chart]:
        """Figure of merit over each axis, and training loss over steps."""
        last = self._curve[-1]
        axes = ("step", "tokens" if last["tokens"] != last["samples"] else "samples", "seconds")
        return [*(self._merit_chart(axis) for axis in axes), self._loss_chart()]

    def _merit_chart(self, axis: str) -> Chart:
        merit = self._merit
        traces = self._traces(axis, "value")
        end = max((x for trace in traces for x in trace["x"]), default=1.0)
        traces.append(reference_line([0, end], [merit.target] * 2, "target"))
        label = f"{merit.name} ({merit.unit})" if merit.unit else merit.name
        return Chart(
            f"convergence-{self._number}-{axis}",
            f"{self._of}: {merit.name} against {_AXES[axis]}",
            f"{merit.doc} {merit.better.capitalize()} is better; the grey line is the target, "
            f"{merit.target:g}. Lines are means over seeds, bands their range.",
            make_figure(traces, _AXES[axis], label, xaxis={"rangemode": "tozero"}),
            self._sheet("value", "at step", axis),
        )

    def _loss_chart(self) -> Chart:
        return Chart(
            f"convergence-{self._number}-loss",
            f"{self._of}: training loss",
            "Loss of each step before its update, the mean over the global batch. Lines are means over "
            "seeds, bands their range.",
            make_figure(self._traces("step", "loss"), _AXES["step"], "loss", xaxis={"rangemode": "tozero"}),
            self._sheet("loss", "step"),
        )

    def _traces(self, axis: str, key: str) -> list[dict[str, Any]]:
        traces = []
        for i, (name, group) in enumerate(self._groups):
            if group.trainings:
                line = self._style.line(group.case.strategy.name, i)
                traces += _band_and_line(name, group.trainings, axis, key, line)
        return traces

    def _sheet(self, key: str, word: str, axis: str = "") -> Table:
        """Means over seeds of *key* at some steps; with *axis*, preceded by its value at the target."""
        steps = _thin([row["step"] for row in self._curve if row["value"] is not None], _MAX_COLUMNS)
        columns = [Field(f"step_{step}", f"{word} {step}", format="{:.4g}".format) for step in steps]
        took = [Field("to_target", f"{_AXES[axis]} to the target")] if axis else []
        rows = [
            TableRow(
                {
                    **case_cells(group.case, name),
                    "to_target": _to_target(group, axis) if axis else None,
                    **{f"step_{step}": _mean_at(group, key, step) for step in steps},
                }
            )
            for name, group in self._groups
        ]
        return Table("", "", (*CASE_FIELDS, *took, *columns), tuple(rows))


def _mean_at(group: TrainingGroup, key: str, step: int) -> float | None:
    values = [t.curve[step - 1][key] for t in group.trainings if len(t.curve) >= step]
    return statistics.fmean(values) if values else None


def _thin(items: list[T], most: int) -> list[T]:
    """At most *most* of *items*, equally spaced, including the last."""
    every = -(-len(items) // most) or 1
    return items[::-1][::every][::-1]


def _band_and_line(
    name: str, trainings: Sequence[FinishedTraining], axis: str, key: str, line: dict[str, Any]
) -> list[dict[str, Any]]:
    """Range and mean of *key* over *trainings*, where all of them have it."""
    steps = zip(*(training.curve for training in trainings), strict=False)
    shown = _thin([rows for rows in steps if all(row[key] is not None for row in rows)], _MAX_POINTS)
    places = [statistics.fmean(float(row[axis]) for row in rows) for rows in shown]
    values = [[float(row[key]) for row in rows] for rows in shown]
    shade = scatter(
        name,
        [*places, *places[::-1]],
        [*map(max, values), *map(min, values[::-1])],
        "lines",
        fill="toself",
        fillcolor=line["color"],
        # the bands of equivalent cases overlap
        opacity=0.05,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    mean = scatter(name, places, map(statistics.fmean, values), "lines", line=line)
    return [{**trace, "legendgroup": name} for trace in (shade, mean)]


def _to_target(group: TrainingGroup, axis: str) -> TableCell:
    reached = group.to_target(axis)
    if not reached:
        return TableCell(None, reason="no training reached the target")
    mean = statistics.fmean(reached)
    missed = len(group.trainings) - len(reached)
    return TableCell(
        mean, format_number(mean) + (f" ({missed} of {len(group.trainings)} never)" if missed else "")
    )
