"""The chart of where time goes: parts of the profiled step, beside the timed step."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.summary import CaseSummary
from distbench.report.figures import Chart, Shown, bars, bars_height, drawn, hover
from distbench.units import duration_text

PARTS = ("data", "forward", "backward", "optimizer", "exposed_comm", "other")


def charts(cases: Sequence[CaseSummary]) -> list[Chart]:
    """Return the chart, if a step of any case was profiled."""
    whole = [row for row in cases if _shares(row)]
    if not whole:
        return []
    shown = Shown.of(whole, cases)
    shares = [_shares(row) for row in shown.rows]
    steps = [_step(row) for row in shown.rows]
    traces = [
        bars(
            part.replace("exposed_comm", "exposed communication"),
            range(len(shares)),
            [of[part] for of in shares],
            i,
            hovertext=[
                hover(row.case.name, f"{part.replace('_', ' ')}: {of[part]:.1%}", f"step as timed: {step}")
                for row, of, step in zip(shown.rows, shares, steps, strict=True)
            ],
            hoverinfo="text",
            customdata=[row.case.id for row in shown.rows],
        )
        for i, part in enumerate(PARTS)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"tickformat": ".0%", "range": [0, 1.001]},
        "yaxis": shown.axis(shown.rows, steps),
    }
    worst = max(zip(shown.rows, shares, strict=True), key=lambda each: each[1]["exposed_comm"])
    return [
        Chart(
            "time-parts",
            "Parts of a step",
            "Each bar is one step under the profiler, taken apart (mean over ranks; parts in the order of "
            "the legend): shares, not times, for the profiler takes time too. Beside each name stands the "
            "step as timed with nothing else "
            f"switched on, lower is better.{shown.left_out}",
            drawn(traces, "share of a step", "", **layout),
            told=f"Most exposed communication: {shown.names[worst[0].case.id]}, "
            f"{worst[1]['exposed_comm']:.0%} of its step.",
            height=bars_height(len(shares)),
        )
    ]


def _shares(row: CaseSummary) -> dict[str, float]:
    """Return the share of each part in a profiled step; nothing if any of it is not known."""
    parts = {part: found.value for part in PARTS if (found := row.values.get(f"profile_{part}_s"))}
    # each is a median over trials, and medians of parts need not add up to that of the whole
    whole = sum(parts.values())
    if len(parts) < len(PARTS) or whole <= 0:
        return {}
    return {part: seconds / whole for part, seconds in parts.items()}


def _step(row: CaseSummary) -> str:
    return duration_text(row.values["step_s"].value) if "step_s" in row.values else "–"
