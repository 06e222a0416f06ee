"""The view ``predictions``: step times foretold from the probe of a run, beside the measured ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited
from distbench.core.units import format_count, format_duration, format_value
from distbench.prediction import StepPrediction, Term
from distbench.record import Status
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells, value_cell
from distbench.views.charts.figures import (
    Bar,
    CaseAxis,
    Chart,
    ChartSelection,
    error_bars,
    hover,
    make_figure,
    scatter,
    stacked_bars,
)
from distbench.views.charts.palette import GREY, PREDICTED_TERMS

_TERMS: tuple[Term, ...] = ("compute", "communication", "bubble", "update")
_MS = 1e-3
_SIGNED = "{:+.1%}".format
_LACKS = "the prediction lacks a part of the step, and is a lower bound"
_NONE = TableCell(None, reason="the case was not measured, or its prediction lacks a part")


class PredictionsView(View):
    """A row for each case of a run with a probe, measured or not."""

    title = "Predictions beside measurements"
    order = 46
    collapsed = True
    caption = (
        "step: measured, the slowest rank's. predicted: by the theory of the strategy and the rates of the "
        "run's probe, which no timed step entered, with the interval that should contain 90 % of measured "
        "steps. error: predicted over measured, less 1. The rest are the parts that the prediction is the "
        "sum of."
    )
    fields = (
        *CASE_FIELDS,
        Field("step_s", "step", "Measured length of a step, the slowest rank's.", "s", "lower"),
        Field(
            "predicted_s",
            "predicted",
            "Predicted length of a step, or its least.",
            "s",
            "lower",
        ),
        Field("predicted_low_s", "", "Lower end of the 90% interval of the prediction.", "s"),
        Field("predicted_high_s", "", "Upper end of the 90% interval of the prediction.", "s"),
        Field("error", "error", "Predicted over measured, less 1.", format=_SIGNED),
        Field("compute_s", "compute", "Forward and backward passes, recomputation included.", "s"),
        Field("communication_s", "communication", "Collectives that computation does not hide.", "s"),
        Field("bubble_s", "bubble", "Waiting for other pipeline stages.", "s"),
        Field("update_s", "update", "Update of the parameters.", "s"),
    )

    def table(self, run: RunAnalysis) -> Table:
        if not self.is_requested(run):
            return self.make_table([], ["No rates were measured; a suite with probe: {} measures them."])
        rows = [row for row in run.cases if row.status != Status.UNSUPPORTED]
        names = run.short_names(rows)
        found = {row.case.id: run.predictions[row.case.id].step for row in rows}
        table = [_row(row, names[row.case.id], found[row.case.id]) for row in rows]
        reasons = group_pairs(
            (step, names[case_id]) for case_id, step in found.items() if isinstance(step, str)
        )
        notes = [f"{join_limited(cases)}: no prediction: {why}." for why, cases in reasons.items()]
        return self.make_table(table, [*_summary(rows, found), *notes])

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = ChartSelection.fastest(run, lambda row: _whole_step(run, row))
        if not shown.items:
            return
        bars = [
            Bar(row.case.name, row.case.id, {term: step.terms.get(term, 0.0) for term in _TERMS})
            for row, _, step in shown.items
        ]
        axis = CaseAxis.of((row, f"{name} · {_measured_text(row)}") for row, name, _ in shown.items)
        placed = [
            (row, place)
            for (row, *_), place in zip(shown.items, axis.positions, strict=True)
            if "step_s" in row.values
        ]
        yield Chart(
            "predicted-terms",
            "Terms of predicted steps",
            "Each bar is a step as it was predicted, and its terms; the line is the interval that should "
            "contain 90 % of measured steps. Diamonds are measured steps. Lower is better.",
            make_figure(
                [
                    *stacked_bars(
                        bars,
                        {term: term for term in _TERMS},
                        PREDICTED_TERMS,
                        lambda _, time: format_value(time, "s"),
                        _MS,
                        axis.positions,
                    ),
                    _intervals([step for *_, step in shown.items], axis.positions),
                    _measured(placed),
                ],
                "ms of a step (lower is better)",
                rows=axis.labels,
                barmode="stack",
            ),
            left_out=shown.truncation_note,
        )

    def summary(self, run: RunAnalysis, table: Table) -> str:
        return table.notes[0] if table.notes else ""

    def is_requested(self, run: RunAnalysis) -> bool:
        return bool(run.predictions)


def _whole_step(run: RunAnalysis, row: CaseSummary) -> StepPrediction | None:
    """Predicted step of *row*; None: there is none, it lacks a part, or the case can't run here."""
    if row.status == Status.UNSUPPORTED:
        return None
    found = run.predictions.get(row.case.id)
    return (
        found.step if found and not isinstance(found.step, str) and not found.step.unpredicted_part else None
    )


def _measured_text(row: CaseSummary) -> str:
    return format_duration(row.values["step_s"].value) if "step_s" in row.values else "not measured"


def _intervals(steps: Sequence[StepPrediction], places: Sequence[float]) -> dict[str, Any]:
    """The intervals of *steps*, at the ends of their bars."""
    ends = [(step.seconds.low / _MS, step.seconds.value / _MS, step.seconds.high / _MS) for step in steps]
    return scatter(
        "90 % interval",
        [value for _, value, _ in ends],
        places,
        hovers=[step.seconds.duration_text for step in steps],
        marker={"color": GREY, "size": 1},
        error_x={**error_bars(ends), "color": GREY},
    )


def _measured(rows: Sequence[tuple[CaseSummary, float]]) -> dict[str, Any]:
    """Marks of measured steps."""
    return scatter(
        "measured",
        [row.values["step_s"].value / _MS for row, _ in rows],
        [place for _, place in rows],
        hovers=[hover(row.case.name, f"measured: {_measured_text(row)}") for row, _ in rows],
        cases=[row.case.id for row, _ in rows],
        marker={"color": GREY, "symbol": "diamond", "size": 9, "line": {"width": 1, "color": "white"}},
    )


def _row(row: CaseSummary, name: str, step: StepPrediction | str) -> TableRow:
    cells = {**case_cells(row.case, name), "step_s": value_cell(row, "step_s")}
    if isinstance(step, str):
        empty = {field.name: TableCell(None, reason=step) for field in PredictionsView.fields[5:]}
        return TableRow({**cells, **empty})
    estimate = row.values.get("step_s")
    seconds = step.seconds
    shown = seconds.bound_text if step.unpredicted_part else seconds.duration_text
    return TableRow(
        {
            **cells,
            "predicted_s": TableCell(seconds.low if step.unpredicted_part else seconds.value, shown),
            "predicted_low_s": seconds.low,
            "predicted_high_s": TableCell(None, reason=_LACKS) if step.unpredicted_part else seconds.high,
            "error": TableCell(seconds.value / estimate.value - 1)
            if estimate and not step.unpredicted_part
            else _NONE,
            **{f"{term}_s": step.terms.get(term, 0.0) for term in _TERMS},
        }
    )


def _summary(rows: Sequence[CaseSummary], found: dict[str, StepPrediction | str]) -> list[str]:
    """Sentences on the size of the errors, and on the order of the cases."""
    pairs = [
        (row.values["step_s"].value, step)
        for row in rows
        if isinstance(step := found[row.case.id], StepPrediction)
        and not step.unpredicted_part
        and "step_s" in row.values
    ]
    if not pairs:
        return []
    errors = sorted(abs(step.seconds.value / measured - 1) for measured, step in pairs)
    inside = sum(step.seconds.low <= measured <= step.seconds.high for measured, step in pairs)
    text = (
        f"{format_count(len(pairs), 'case')}: median error {statistics.median(errors):.1%}, largest "
        f"{errors[-1]:.1%}; {inside} of {len(pairs)} inside the interval."
    )
    order = [
        (a - b) * (s.seconds.value - t.seconds.value) > 0
        for number, (a, s) in enumerate(pairs)
        for b, t in pairs[:number]
        if max(a, b) > _APART * min(a, b)
    ]
    if not order:
        return [text]
    return [
        text,
        f"{sum(order)} of {format_count(len(order), 'pair')} more than 10 % apart in the right order.",
    ]


_APART = 1.1
"""Ratio of two steps from which their order counts."""
