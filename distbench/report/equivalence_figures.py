"""The chart of how far each case is from its reference, held against what rounding allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distbench.analysis.equivalence import DIFFERS, EQUIVALENT, Arm, Worst
from distbench.analysis.summary import CaseSummary
from distbench.analysis.verdicts import furthest, place_text
from distbench.report.figures import GREY, MOST_CASES, PALETTE, Chart, Shown, bars_height, drawn, hover

_FAMILIES = {
    "loss": ("loss", "circle"),
    "grad_norm": ("gradient norm", "square"),
    "gradient": ("gradients of the first step", "diamond"),
    "parameter": ("parameters", "triangle-up"),
}


def charts(cases: Sequence[CaseSummary]) -> list[Chart]:
    """Return the chart, if any case was checked and any number was not the same in every bit."""
    rows = [row for row in cases if row.verdict and _most(row) > 0]
    if not rows:
        return []
    # those that are furthest are what a reader looks for
    places = sorted(rows, key=_most, reverse=True)[:MOST_CASES]
    left_out = f" Drawn are the {MOST_CASES} furthest of {len(rows):,}." if len(rows) > MOST_CASES else ""
    traces = [trace for family in _FAMILIES if (trace := _trace(places, family))["x"]]
    return [
        Chart(
            "equivalence-envelope",
            "Distance from the reference",
            "Each mark is the largest difference of one kind over all steps and tensors, as a part of what "
            "rounding allows there; further left is nearer to the reference, and right of the grey line at 1 "
            f"it is another training. The axis is logarithmic.{left_out}",
            drawn(
                [_limit(len(places)), *traces],
                "part of the envelope (lower is better)",
                "",
                xaxis={"type": "log"},
                yaxis=Shown.of(places, cases).axis(places),
            ),
            told=_told(cases),
            height=bars_height(len(places)),
        )
    ]


def _most(row: CaseSummary) -> float:
    assert row.verdict is not None
    return max((furthest(arm) for arm in row.verdict.arms), default=0.0)


def _trace(rows: Sequence[CaseSummary], family: str) -> dict[str, Any]:
    """Return the marks of one kind of quantity: one for each case and optimizer that it was trained with."""
    name, symbol = _FAMILIES[family]
    found = [
        (place, row, arm, worst)
        for place, row in enumerate(rows)
        for arm in (row.verdict.arms if row.verdict else ())
        for worst in arm.worst
        # a logarithm has no place for what is the same, nor for what is no number any more
        if worst.place.family == family and 0 < worst.of_limit < math.inf
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [worst.of_limit for *_, worst in found],
        "y": [place for place, *_ in found],
        "hovertext": [hover(row.case.name, *_facts(arm, worst)) for _, row, arm, worst in found],
        "hoverinfo": "text",
        "customdata": [row.case.id for _, row, *_ in found],
        "marker": {"color": PALETTE[list(_FAMILIES).index(family)], "symbol": symbol, "size": 9},
    }


def _facts(arm: Arm, worst: Worst) -> list[str]:
    return [
        f"{place_text(worst)}, step {worst.place.step}, trained with {arm.optimizer}",
        f"relative error {worst.error:.2g}, {worst.of_limit:.2g} of the envelope",
    ]


def _limit(count: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [1, 1],
        "y": [-0.5, count - 0.5],
        "hoverinfo": "skip",
        "line": {"color": GREY, "width": 2},
        "showlegend": False,
    }


def _told(cases: Sequence[CaseSummary]) -> str:
    checked = [row for row in cases if row.verdict]
    words = [row.verdict.word for row in checked if row.verdict]
    told = f"{len(checked):,} cases checked: {words.count(DIFFERS):,} differ"
    return f"{told}, {words.count(EQUIVALENT):,} are the same in every bit." if checked else ""
