"""One step of two cases as swimlanes, one above the other, on one axis of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, Piece, RankStep
from distbench.grouping import grouped
from distbench.report import palette
from distbench.report.figures import safe

MOST_PIECES = 12_000
"""Of a page: some 25 bytes each."""
_LEAST_PIECES = 20
_ROW, _AROUND = 24, 110
_UPPER, _LOWER = (0.55, 0.97), (0.0, 0.42)
_ORDER = {COMPUTE: 0, COMMUNICATION: 1, COPY: 2}
_LANE_WORDS = {COMPUTE: "compute", COMMUNICATION: "comm", COPY: "copies"}
_PLACES = ({"xaxis": "x", "yaxis": "y"}, {"xaxis": "x", "yaxis": "y2"})


@dataclass(frozen=True)
class Lanes:
    """One case that may be chosen."""

    case_id: str
    name: str
    steps: Sequence[RankStep]


def figure(cases: Sequence[Lanes], chosen: Sequence[int]) -> dict[str, Any]:
    """Data and layout of the chart; the page draws the *chosen* of *cases*, which are places among them."""
    most = max(_LEAST_PIECES, MOST_PIECES // max(1, sum(len(case.steps) for case in cases)))
    drawn = [[step.coarser(most) for step in case.steps] for case in cases]
    lanes = [[key for step in steps for key in _lanes(step)] for steps in drawn]
    traces = [
        {**trace, "meta": place}
        for place, (steps, of) in enumerate(zip(drawn, lanes, strict=True))
        for trace in _traces(steps, of)
    ]
    about = {
        "cases": [
            {"id": case.case_id, "name": safe(case.name), "axis": _axis(of)}
            for case, of in zip(cases, lanes, strict=True)
        ],
        "chosen": [*chosen],
        "slots": [
            {"label": label, "axis": axis, "trace": place}
            for label, axis, place in zip(("Above", "Below"), ("yaxis", "yaxis2"), _PLACES, strict=True)
        ][: len(chosen)],
    }
    return {"data": traces, "layout": _layout(about)}


def height(cases: Sequence[Lanes]) -> int:
    """CSS pixels that two of *cases* need."""
    return _AROUND + 2 * _ROW * max(3, *(sum(len(_lanes(step)) for step in case.steps) for case in cases))


_Lane = tuple[int, str, str]
"""Rank, kind, and group of ranks: a rank may communicate in several at once."""


def _lanes(step: RankStep) -> list[_Lane]:
    found = {(step.rank, piece.kind, _group(piece)) for piece in step.pieces}
    return sorted(found, key=lambda lane: (_ORDER[lane[1]], lane[2]))


def _group(piece: Piece) -> str:
    return piece.group if piece.kind == COMMUNICATION else ""


def _axis(lanes: Sequence[_Lane]) -> dict[str, Any]:
    groups = Counter(rank for rank, kind, _ in lanes if kind == COMMUNICATION)
    names = [
        f"rank {rank} {_LANE_WORDS[kind]}{f' {group}' if group and groups[rank] > 1 else ''}"
        for rank, kind, group in lanes
    ]
    return {
        "tickvals": [*range(len(lanes))],
        "ticktext": [safe(name) for name in names],
        "range": [len(lanes) - 0.5, -0.5],
    }


def _traces(steps: Sequence[RankStep], lanes: Sequence[_Lane]) -> Iterator[dict[str, Any]]:
    """Bars of each part of the step, each collective and each direction of copies."""
    every = [(step.rank, piece) for step in steps for piece in step.pieces]
    by_name = grouped(every, lambda pair: (_ORDER[pair[1].kind], pair[1].name))
    for (_, name), pairs in sorted(by_name.items(), key=lambda item: (item[0][0], _part_place(item[0][1]))):
        kind = pairs[0][1].kind
        label = safe(f"{name} compute" if kind == COMPUTE and name == "other" else name)
        moved = kind == COMMUNICATION
        yield {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "legendgroup": f"{kind} {label}",
            "base": [piece.begin * 1e3 for _, piece in pairs],
            "x": [(piece.end - piece.begin) * 1e3 for _, piece in pairs],
            "y": [lanes.index((rank, kind, _group(piece))) for rank, piece in pairs],
            "width": 0.8,
            "marker": {"color": _colour(kind, name)},
            "customdata": [_numbers(piece) for _, piece in pairs],
            "hovertemplate": _hover(label, moved=moved),
        }


def _part_place(name: str) -> tuple[int, str]:
    parts = [*palette.PARTS]
    return (parts.index(name) if name in parts else len(parts), name)


def _numbers(piece: Piece) -> list[float | str]:
    """Begin, end and busy time; of communication also the group, what is exposed, and the waiting; in ms."""
    numbers: list[float | str] = [piece.begin * 1e3, piece.end * 1e3, piece.busy * 1e3]
    if piece.kind != COMMUNICATION:
        return numbers
    return [*numbers, safe(piece.group or "not known"), piece.exposed * 1e3, piece.wait * 1e3]


def _hover(label: str, *, moved: bool) -> str:
    text = f"<b>{label}</b><br>%{{customdata[0]:.4g}} to %{{customdata[1]:.4g}} ms"
    text += ", %{customdata[2]:.3g} ms busy"
    if moved:
        text += "<br>ranks %{customdata[3]}<br>exposed %{customdata[4]:.3g} ms"
        text += ", waiting %{customdata[5]:.3g} ms"
    return f"{text}<extra></extra>"


def _colour(kind: str, name: str) -> str:
    if kind == COMMUNICATION:
        return palette.collective(name)
    return palette.COPY if kind == COPY else palette.PARTS.get(name, palette.PARTS["other"])


def _layout(about: dict[str, Any]) -> dict[str, Any]:
    alone = len(about["slots"]) == 1
    upright = {"title": {"text": ""}, "showgrid": False, "zeroline": False, "fixedrange": True}
    return {
        "barmode": "overlay",
        "showlegend": True,
        "xaxis": {
            "title": {"text": "ms from the step's begin"},
            "rangemode": "tozero",
            "anchor": "y" if alone else "y2",
        },
        "yaxis": {**upright, "domain": [0.0, 0.97] if alone else [*_UPPER]},
        **({} if alone else {"yaxis2": {**upright, "domain": [*_LOWER]}}),
        "pair": about,
    }
