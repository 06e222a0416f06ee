"""The view ``loss``: the training loss over steps, tokens and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import AnalysedRun
from distbench.analysis.training_curves import progress
from distbench.report.figures import Chart, Shown, Style, drawn, scatter
from distbench.report.labels import End, end_labels, with_room
from distbench.report.view import CASE, View, case_cells
from distbench.tables.table import Cell, Field, Row, Sheet

_MOST_POINTS = 200
_PLOT = 330
"""CSS pixels of the upright axis, about."""
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
    """A row for each step of each case; a chart for each of steps, tokens and seconds that is known."""

    title = "Loss curves"
    place = 80
    is_behind = True
    caption = _WHAT
    fields = (
        *CASE,
        Field("step", "step", "Step, from 1 on, warm-up included.", type="bigint"),
        Field("tokens", "tokens", "Tokens up to the end of the step.", "tokens", format="{:,.0f}".format),
        Field("seconds", "seconds", "Seconds up to the end of the step.", "s", format="{:.3f}".format),
        Field("loss", "loss", "Training loss, mean over ranks.", "", "lower", format="{:.5g}".format),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        rows = [row for row in run.cases if _has_loss(row)]
        names = run.names(rows)
        made = [step for row in rows for step in _steps(row, names[row.case.id])]
        return self.made(made, [] if made else ["No trial reported a loss."])

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        shown = Shown.of(run, lambda row: progress(row) if _has_loss(row) else None)
        for axis in _SEE:
            if any(of[axis] for *_, of in shown.items):
                yield _chart(axis, shown, Style.of(run.cases))


def _has_loss(row: CaseSummary) -> bool:
    return any(loss is not None for loss in row.losses)


def _steps(row: CaseSummary, name: str) -> list[Row]:
    of = progress(row)
    steps = zip_longest(of["steps"], of["tokens"], of["seconds"], row.losses)
    return [
        Row({**case_cells(row.case, name), "step": step, "tokens": tokens, "seconds": seconds, "loss": loss})
        for step, tokens, seconds, loss in steps
    ]


def _chart(axis: str, shown: Shown[dict[str, Sequence[float]]], style: Style) -> Chart:
    known = [
        (row, name, places, style, i) for i, (row, name, of) in enumerate(shown.items) if (places := of[axis])
    ]
    steps = _some(max(len(row.losses) for row, *_ in shown.items))
    columns = tuple(Field(f"step_{step}", f"step {step}", format="{:.5g}".format) for step in steps)
    rows = [
        Row(
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
        f"{_WHAT} {_SEE[axis]}{shown.left_out}",
        _drawn(axis, {each[1]: _line(*each) for each in known}),
        Sheet("", "", (*CASE, *columns), tuple(rows)),
    )


def _drawn(axis: str, named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The chart of lines, each with its name at its end."""
    lines = [*named.values()]
    ends = [
        End(line["x"][-1], line["y"][-1], name, line["line"]["color"])
        for name, line in named.items()
        if line["y"][-1] is not None
    ]
    losses = [loss for line in lines for loss in line["y"] if loss is not None]
    margin = 0.05 * (max(losses) - min(losses)) or 1.0
    low, high = min(losses) - margin, max(losses) + margin
    return drawn(
        lines,
        axis,
        "loss",
        xaxis={"range": with_room(0, max(place for line in lines for place in line["x"]))},
        yaxis={"range": [low, high]},
        annotations=end_labels(ends, low, high, _PLOT),
        showlegend=False,
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
