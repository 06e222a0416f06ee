"""The view ``loss``: the training loss over steps, tokens and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from distbench.analysis.curves import progress
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import CaseSummary
from distbench.report.figures import Chart, Shown, Style, drawn, scatter
from distbench.report.sheet import Cell, Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells

_MOST_POINTS = 200
_STEPS_SHOWN = 10
_WHAT = (
    "Training loss, mean over ranks, of the first trial of each case that counts, from the first warm-up "
    "step on; lower is better."
)
_SEE = {
    "steps": "Strategies that do the same work lie on one line.",
    "tokens": "Here cases with different batches compare too: what they learned from the same data.",
    "seconds": "The curve that falls fastest learns most per second. The first step may compile.",
}


class LossView(View):
    """The training loss over steps, tokens and seconds."""

    title: ClassVar[str] = "Loss curves"
    place: ClassVar[int] = 80
    is_behind: ClassVar[bool] = True
    caption: ClassVar[str] = _WHAT
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE,
        Field("step", "step", "Step, from 1 on, warm-up included.", type="bigint"),
        Field("tokens", "tokens", "Tokens up to the end of the step.", "tokens", format="{:,.0f}".format),
        Field("seconds", "seconds", "Seconds up to the end of the step.", "s", format="{:.3f}".format),
        Field("loss", "loss", "Training loss, mean over ranks.", "", "lower", format="{:.5g}".format),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        """A row for each step of each case."""
        rows = [row for row in run.cases if any(loss is not None for loss in row.losses)]
        names = run.names(rows)
        made = [each for row in rows for each in _steps(row, names[row.case.id])]
        return self.made(made, [] if made else ["No trial reported a loss."])

    def charts(self, run: AnalysedRun) -> list[Chart]:
        """A chart for each of steps, tokens and seconds that is known."""
        rows = [row for row in run.cases if any(loss is not None for loss in row.losses)]
        if not rows:
            return []
        shown, style = Shown.of(rows, run), Style.of(run.cases)
        curves = [(row, progress(row)) for row in shown.rows]
        return [_chart(axis, curves, shown, style) for axis in _SEE if any(of[axis] for _, of in curves)]


def _steps(row: CaseSummary, name: str) -> list[Row]:
    of = progress(row)
    return [
        Row(
            {
                **case_cells(row.case, name),
                "step": i + 1,
                **{axis: of[axis][i] if of[axis] else None for axis in ("tokens", "seconds")},
                "loss": loss,
            }
        )
        for i, loss in enumerate(row.losses)
    ]


def _chart(
    axis: str, curves: list[tuple[CaseSummary, dict[str, Sequence[float]]]], shown: Shown, style: Style
) -> Chart:
    known = [(i, row, of[axis]) for i, (row, of) in enumerate(curves) if of[axis]]
    lines = [_line(row, shown.names[row.case.id], places, style, i) for i, row, places in known]
    steps = _some(max(len(row.losses) for row in shown.rows))
    columns = tuple(Field(f"step_{step}", f"step {step}", format="{:.5g}".format) for step in steps)
    rows = [
        Row(
            {
                **case_cells(row.case, shown.names[row.case.id]),
                **{f"step_{step}": _cell(row, places, axis, step) for step in steps},
            }
        )
        for _, row, places in known
    ]
    return Chart(
        f"loss-{axis}",
        f"Loss over {axis}",
        f"{_WHAT} {_SEE[axis]}{shown.left_out}",
        drawn(lines, axis, "loss", xaxis={"rangemode": "tozero"}),
        Sheet("", "", (*CASE, *columns), tuple(rows)),
    )


def _line(row: CaseSummary, name: str, places: Sequence[float], style: Style, i: int) -> dict[str, Any]:
    every = -(-len(row.losses) // _MOST_POINTS)
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


def _some(count: int) -> list[int]:
    """The first, the last and evenly spread steps between: enough for a table."""
    shown = min(count, _STEPS_SHOWN)
    return [1 + round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]


def _cell(row: CaseSummary, places: Sequence[float], axis: str, step: int) -> Cell:
    loss = row.losses[step - 1] if step <= len(row.losses) else None
    if loss is None or axis == "steps":
        return Cell(loss)
    return Cell(loss, f"{loss:.5g} at {places[step - 1]:.4g}")
