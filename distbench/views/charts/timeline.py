"""Swimlanes of one step of two cases above each other on one time axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, Activity, RankStep
from distbench.core.grouping import group_by
from distbench.views.charts import palette
from distbench.views.charts.figures import escape_label
from distbench.views.charts.pairs import PairCase, paired_figure

MAX_ACTIVITIES = 12_000
"""Maximum number of activities on a page: some 25 bytes each."""
_MIN_ACTIVITIES = 20
_ROW, _AROUND = 24, 110
_TIMES = "<br>%{base:.4g} to %{x:.4g} ms"
_ORDER = {COMPUTE: 0, COMMUNICATION: 1, COPY: 2}
_LANE_NAMES = {COMPUTE: "compute", COMMUNICATION: "comm", COPY: "copies"}


@dataclass(frozen=True)
class TimelineCase:
    """A case that may be selected."""

    case_id: str
    name: str
    steps: Sequence[RankStep]


def timeline_figure(cases: Sequence[TimelineCase], chosen: Sequence[int]) -> dict[str, Any]:
    """Data and layout of the chart; the page draws *chosen*, indices of *cases*."""
    most = max(_MIN_ACTIVITIES, MAX_ACTIVITIES // max(1, sum(len(case.steps) for case in cases)))
    drawn = [[step.merged_to(most) for step in case.steps] for case in cases]
    lanes = [[key for step in steps for key in _lanes(step)] for steps in drawn]
    choices = [
        PairCase(case.case_id, case.name, [*_traces(steps, of)], _names(of))
        for case, steps, of in zip(cases, drawn, lanes, strict=True)
    ]
    return paired_figure(choices, chosen, "ms since the start of the step", "overlay")


def timeline_height(cases: Sequence[TimelineCase]) -> int:
    """Height in CSS pixels for two of *cases*."""
    return _AROUND + 2 * _ROW * max(3, *(sum(len(_lanes(step)) for step in case.steps) for case in cases))


_Lane = tuple[int, str, str]
"""Rank, kind, and group of ranks: a rank may communicate in several at once."""


def _lanes(step: RankStep) -> list[_Lane]:
    found = {(step.rank, piece.kind, _group(piece)) for piece in step.activities}
    return sorted(found, key=lambda lane: (_ORDER[lane[1]], lane[2]))


def _group(piece: Activity) -> str:
    return piece.group if piece.kind == COMMUNICATION else ""


def _names(lanes: Sequence[_Lane]) -> list[str]:
    groups = Counter(rank for rank, kind, _ in lanes if kind == COMMUNICATION)
    return [
        f"rank {rank} {_LANE_NAMES[kind]}{f' {group}' if group and groups[rank] > 1 else ''}"
        for rank, kind, group in lanes
    ]


def _traces(steps: Sequence[RankStep], lanes: Sequence[_Lane]) -> Iterator[dict[str, Any]]:
    """Bars of each part of the step, each collective of each group, and each direction of copies."""
    every = [(step.rank, piece) for step in steps for piece in step.activities]
    by_name = group_by(every, lambda pair: (_ORDER[pair[1].kind], pair[1].name, pair[1].group))
    for (_, name, group), pairs in sorted(by_name.items(), key=lambda item: _legend_position(*item[0])):
        kind = pairs[0][1].kind
        label = escape_label(f"{name} compute" if kind == COMPUTE and name == "other" else name)
        trace = {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "base": [piece.begin * 1e3 for _, piece in pairs],
            "x": [(piece.end - piece.begin) * 1e3 for _, piece in pairs],
            "y": [lanes.index((rank, kind, _group(piece))) for rank, piece in pairs],
            "width": 0.8,
            "marker": {"color": _color(kind, name)},
            "hovertemplate": f"<b>{label}</b>{_TIMES}<extra></extra>",
        }
        yield (
            trace if kind != COMMUNICATION else trace | _wait_text(label, group, [each for _, each in pairs])
        )


def _wait_text(label: str, group: str, pieces: Sequence[Activity]) -> dict[str, Any]:
    """Hover text of a collective besides its times."""
    ranks = f" among ranks {escape_label(group)}" if group else ""
    costs = "exposed %{customdata[0]:.3g} ms, waiting %{customdata[1]:.3g} ms"
    return {
        "customdata": [[piece.exposed * 1e3, piece.wait * 1e3] for piece in pieces],
        "hovertemplate": f"<b>{label}</b>{ranks}{_TIMES}<br>{costs}<extra></extra>",
    }


def _legend_position(order: int, name: str, group: str) -> tuple[int, int, str, str]:
    parts = [*palette.STEP_PARTS]
    return order, parts.index(name) if name in parts else len(parts), name, group


def _color(kind: str, name: str) -> str:
    if kind == COMMUNICATION:
        return palette.collective_color(name)
    return palette.COPIES if kind == COPY else palette.STEP_PARTS.get(name, palette.STEP_PARTS["other"])
