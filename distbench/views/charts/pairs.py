"""Charts of two cases above each other on one axis; ``pairs.js`` lets readers choose the cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.views.charts.figures import escape_label

_UPPER, _LOWER = (0.53, 0.92), (0.0, 0.39)
# each has its name above it
_SLOTS = (
    {"label": "Above", "axis": "yaxis", "trace": {"xaxis": "x", "yaxis": "y"}},
    {"label": "Below", "axis": "yaxis2", "trace": {"xaxis": "x", "yaxis": "y2"}},
)


@dataclass(frozen=True)
class PairCase:
    """A case that may be selected."""

    case_id: str
    name: str
    traces: Sequence[dict[str, Any]]
    """Traces of the same name share an entry of the legend, also between both cases."""
    rows: Sequence[str]
    """Labels at 0, 1, 2 ... of its vertical axis."""


def paired_figure(cases: Sequence[PairCase], chosen: Sequence[int], x: str, barmode: str) -> dict[str, Any]:
    """Data and layout; the page draws *chosen*, one or two indices of *cases*."""
    about = {
        "cases": [
            {"id": case.case_id, "name": escape_label(case.name), "axis": _axis(case.rows)} for case in cases
        ],
        "chosen": [*chosen],
        "slots": [*_SLOTS[: len(chosen)]],
    }
    traces = [{**trace, "meta": place} for place, case in enumerate(cases) for trace in case.traces]
    alone = len(chosen) == 1
    upright = {"title": {"text": ""}, "showgrid": False, "zeroline": False, "fixedrange": True}
    layout = {
        "barmode": barmode,
        "showlegend": True,
        "xaxis": {"title": {"text": x}, "rangemode": "tozero", "anchor": "y" if alone else "y2"},
        "yaxis": {**upright, "domain": [0.0, 0.92] if alone else [*_UPPER]},
        **({} if alone else {"yaxis2": {**upright, "domain": [*_LOWER]}}),
        "pair": about,
    }
    return {"data": traces, "layout": layout}


def chosen_cases(figure: dict[str, Any]) -> dict[str, Any]:
    """*figure* with the chosen cases alone, as the page draws it; as it is if it offers no choice."""
    if not (about := figure["layout"].get("pair")):
        return figure
    layout = {key: value for key, value in figure["layout"].items() if key != "pair"} | {"annotations": []}
    data: list[dict[str, Any]] = []
    for slot, place in zip(about["slots"], about["chosen"], strict=True):
        case = about["cases"][place]
        layout[slot["axis"]] = axis = {**layout[slot["axis"]], **case["axis"]}
        heading = {"text": f"<b>{case['name']}</b>", "showarrow": False, "x": 0, "y": axis["domain"][1]}
        where = {"xref": "paper", "xanchor": "left", "yref": "paper", "yanchor": "bottom"}
        layout["annotations"].append(heading | where)
        for trace in (each for each in figure["data"] if each["meta"] == place):
            # one entry of the legend for both cases
            is_new = all(other["name"] != trace["name"] for other in data)
            data.append({**trace, **slot["trace"], "showlegend": is_new, "legendgroup": trace["name"]})
    return {"data": data, "layout": layout}


def default_pair(cases: Sequence[CaseSummary]) -> list[int]:
    """Indices of the initial pair of *cases*, sorted by speed: fastest and slowest on most devices."""
    most = max(row.case.world_size for row in cases)
    places = [place for place, row in enumerate(cases) if row.case.world_size == most]
    return list(dict.fromkeys([places[0], places[-1]]))


def _axis(rows: Sequence[str]) -> dict[str, Any]:
    return {
        "tickvals": [*range(len(rows))],
        "ticktext": [escape_label(name) for name in rows],
        "range": [len(rows) - 0.5, -0.5],
    }
