"""The view ``loss``: the training loss over steps, tokens and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.training_curves import consumed_per_step
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.analysis.wording.verdict_sentences import verdict_sentences
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts.figures import CaseStyle, Chart, ChartSelection, make_figure, scatter
from distbench.views.charts.labels import LineEnd, label_line_ends, range_with_label_space

_MAX_POINTS = 200
_PLOT = 330
"""Approximate height of the plot in CSS pixels."""
_MAX_TABLE_STEPS = 10
_CAPTION = (
    "Training loss, mean over ranks, of the first trial of each case that counts, from the first warm-up "
    "step on; lower is better."
)
_AXIS_HINTS = {
    "steps": "Strategies that do the same work lie on one line.",
    "tokens": (
        "On this axis cases with different batches can be compared: it shows what they learned from the "
        "same data."
    ),
    "seconds": "The curve that falls fastest learns most per second. The first step may compile.",
}


class LossView(View):
    """A row for each step of each case; a chart over steps and seconds, and over tokens if batches differ."""

    title = "Loss curves"
    order = 80
    collapsed = True
    table_in_charts = True
    caption = _CAPTION
    fields = (
        *CASE_FIELDS,
        Field("step", "step", "Step, from 1 on, warm-up included.", type="bigint"),
        Field("tokens", "tokens", "Tokens up to the end of the step.", "tokens", format="{:,.0f}".format),
        Field("seconds", "seconds", "Seconds up to the end of the step.", "s", format="{:.3f}".format),
        Field("loss", "loss", "Training loss, mean over ranks.", "", "lower", format="{:.5g}".format),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [row for row in run.cases if _has_loss(row)]
        names = run.short_names(rows)
        made = [step for row in rows for step in _steps(row, names[row.case.id])]
        return self.make_table(made, [] if made else ["No trial reported a loss."])

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = ChartSelection.fastest(run, lambda row: consumed_per_step(row) if _has_loss(row) else None)
        for axis in _AXIS_HINTS:
            if axis == "tokens" and len({tuple(of["tokens"]) for *_, of in shown.items}) == 1:
                # the chart over steps, with another scale
                continue
            if any(of[axis] for *_, of in shown.items):
                yield _chart(axis, shown, CaseStyle.for_cases(run.cases))

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """Verdicts on the losses, if any."""
        sentences = verdict_sentences(run, LOSS_VERDICT)
        return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if the losses of any case are not those of its reference."""
        judged = [row.verdicts[LOSS_VERDICT] for row in run.cases if LOSS_VERDICT in row.verdicts]
        return any(verdict.gravity == "bad" for verdict in judged)


def _has_loss(row: CaseSummary) -> bool:
    return any(loss is not None for loss in row.losses)


def _steps(row: CaseSummary, name: str) -> list[TableRow]:
    of = consumed_per_step(row)
    steps = zip_longest(of["steps"], of["tokens"], of["seconds"], row.losses)
    return [
        TableRow(
            {**case_cells(row.case, name), "step": step, "tokens": tokens, "seconds": seconds, "loss": loss}
        )
        for step, tokens, seconds, loss in steps
    ]


def _chart(axis: str, shown: ChartSelection[dict[str, Sequence[float]]], style: CaseStyle) -> Chart:
    known = [
        (row, name, places, style, i) for i, (row, name, of) in enumerate(shown.items) if (places := of[axis])
    ]
    steps = _table_steps(max(len(row.losses) for row, *_ in shown.items))
    columns = tuple(Field(f"step_{step}", f"step {step}", format="{:.5g}".format) for step in steps)
    rows = [
        TableRow(
            {
                **case_cells(row.case, name),
                **{f"step_{step}": _cell(row, places, axis, step) for step in steps},
            }
        )
        for row, name, places, *_ in known
    ]
    return Chart(
        f"loss-{axis}",
        f"Loss over {axis}",
        f"{_CAPTION} {_AXIS_HINTS[axis]}",
        _line_figure(axis, {each[1]: _line(*each) for each in known}),
        Table("", "", (*CASE_FIELDS, *columns), tuple(rows)),
        height=420,
        left_out=shown.truncation_note,
    )


def _line_figure(axis: str, named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Chart of lines, each with its name at its end."""
    lines = [*named.values()]
    ends = [
        LineEnd(line["x"][-1], line["y"][-1], name, line["line"]["color"])
        for name, line in named.items()
        if line["y"][-1] is not None
    ]
    losses = [loss for line in lines for loss in line["y"] if loss is not None]
    margin = 0.05 * (max(losses) - min(losses)) or 1.0
    low, high = min(losses) - margin, max(losses) + margin
    return make_figure(
        lines,
        axis,
        "loss",
        xaxis={"range": range_with_label_space(0, max(place for line in lines for place in line["x"]))},
        yaxis={"range": [low, high]},
        annotations=label_line_ends(ends, low, high, _PLOT),
        showlegend=False,
    )


def _line(row: CaseSummary, name: str, places: Sequence[float], style: CaseStyle, i: int) -> dict[str, Any]:
    every = -(-len(row.losses) // _MAX_POINTS)
    # the last step is always among them
    kept = range(len(row.losses))[::-1][::every][::-1]
    return scatter(
        name,
        [places[at] for at in kept],
        [row.losses[at] for at in kept],
        "lines" if len(kept) > 1 else "markers",
        cases=[row.case.id for _ in kept],
        line=style.line(row.case.strategy.name, i),
        marker=style.marker(row.case.strategy.name),
    )


def _table_steps(count: int) -> list[int]:
    """First, last and evenly spread steps between: enough for a table."""
    shown = min(count, _MAX_TABLE_STEPS)
    return [1 + round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]


def _cell(row: CaseSummary, places: Sequence[float], axis: str, step: int) -> TableCell:
    loss = row.losses[step - 1] if step <= len(row.losses) else None
    if loss is None or axis == "steps":
        return TableCell(loss)
    return TableCell(loss, f"{loss:.5g} at {places[step - 1]:.4g}")
