"""The chart of where memory goes: what a rank keeps by kind, with theory beside the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.memory import KINDS, STATES, Held, held
from distbench.analysis.summary import MEMORY, CaseSummary
from distbench.report.figures import Chart, Shown, bars, bars_height, drawn, hover
from distbench.units import bytes_text

_MIB = 2**20
_LABELS = {"optimizer_state": "optimizer states", "master": "master weights"}


def charts(cases: Sequence[CaseSummary]) -> list[Chart]:
    """Return the chart, if any rank told what it keeps."""
    ranks = {row.case.id: rank for row in cases if (rank := held(row.detail))}
    if not ranks:
        return []
    shown = Shown.of([row for row in cases if row.case.id in ranks], cases)
    found = [(row, ranks[row.case.id]) for row in shown.rows]
    traces = [_part(kind, found, i) for i, kind in enumerate((*KINDS, "activations", "other"))]
    traces += [_theory(found), _peak(found)]
    layout = {"barmode": "stack", "yaxis": shown.axis(shown.rows)}
    return [
        Chart(
            "memory-parts",
            "Memory of a rank by kind",
            "MiB of the rank with the largest model states, lower is better. Each kind is at its largest "
            "over the phases of a step, so a bar may be longer than the peak (circle), at which they are "
            "not all at their largest. The model states are the first four parts; the upright line is what "
            f"ZeRO's table says they need in the dtypes in use.{shown.left_out}",
            drawn([trace for trace in traces if trace["x"]], "MiB (lower is better)", "", **layout),
            told=_told(found, shown.names),
            height=bars_height(len(found)),
        )
    ]


def _told(found: Sequence[tuple[CaseSummary, Held]], names: dict[str, str]) -> str:
    known = [(abs(of.difference), names[row.case.id]) for row, of in found if of.difference is not None]
    if not known:
        return ""
    most, name = max(known)
    return f"Furthest from theory: {name}, by {most:.1%} of its model states."


def _part(kind: str, found: Sequence[tuple[CaseSummary, Held]], i: int) -> dict[str, Any]:
    label = _LABELS.get(kind, kind)
    return bars(
        label,
        range(len(found)),
        [None if (size := rank.find(kind)) is None else size / _MIB for _, rank in found],
        i,
        hovertext=[hover(row.case.name, *_facts(label, kind, rank)) for row, rank in found],
        hoverinfo="text",
        customdata=[row.case.id for row, _ in found],
    )


def _facts(label: str, kind: str, rank: Held) -> list[str]:
    size, theory = rank.find(kind), rank.theory.get(kind)
    told = [f"{label}: {'not known' if size is None else bytes_text(size)}"]
    return [*told, f"by theory {bytes_text(theory)}"] if kind in STATES and theory is not None else told


def _theory(found: Sequence[tuple[CaseSummary, Held]]) -> dict[str, Any]:
    known = [(i, rank.theory["states"]) for i, (_, rank) in enumerate(found) if rank.theory.get("states")]
    # an upright line is a symbol of strokes alone: its colour is that of its outline
    look = {"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": "#888888"}}
    return _marks("model states by theory", known, look)


def _peak(found: Sequence[tuple[CaseSummary, Held]]) -> dict[str, Any]:
    known = [(i, row.values[MEMORY].value) for i, (row, _) in enumerate(found) if MEMORY in row.values]
    look = {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": "#888888"}
    return _marks("peak in the timed steps", known, look)


def _marks(name: str, known: Sequence[tuple[int, float]], look: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [size / _MIB for _, size in known],
        "y": [i for i, _ in known],
        "hovertext": [f"{name}: {bytes_text(size)}" for _, size in known],
        "hoverinfo": "text",
        "marker": look,
    }
