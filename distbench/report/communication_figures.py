"""The charts of communication: volume against theory, bandwidth over message size, what is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.communication import Bandwidth, bandwidths
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import one_line
from distbench.analysis.volume import SCALAR, Volume, volume
from distbench.report.figures import Chart, Shown, Style, bars, bars_height, drawn, hover, safe
from distbench.units import bytes_text

_MIB = 2**20
_MOST_OPERATIONS = 8
_HALF = 0.2


def charts(cases: Sequence[CaseSummary], style: Style) -> list[Chart]:
    """Return the charts that there is data for."""
    return [*_volumes(cases), *_bandwidths(cases, style), *_exposed(cases)]


def _volumes(cases: Sequence[CaseSummary]) -> list[Chart]:
    volumes = {row.case.id: each for row in cases if row.detail and (each := volume(row.detail))}
    moved = [row for row in cases if row.case.id in volumes and _operations([volumes[row.case.id]])]
    if not moved:
        return []
    shown = Shown.of(moved, cases)
    found = [volumes[row.case.id] for row in shown.rows]
    traces: list[dict[str, Any]] = []
    for i, op in enumerate(_operations(found)[:_MOST_OPERATIONS]):
        for what, offset, look in (("measured", -_HALF, 1.0), ("by theory", _HALF, 0.45)):
            sizes = [(each.measured if offset < 0 else each.theory).get(op) for each in found]
            traces.append(_volume(f"{one_line(op)}, {what}", sizes, offset, i) | {"opacity": look})
            traces[-1]["customdata"] = [row.case.id for row in shown.rows]
    layout = {"barmode": "stack", "yaxis": shown.axis(shown.rows)}
    return [
        Chart(
            "communication-volume",
            "Volume by collective",
            "Payload of a rank in a step: the upper bar of each pair is measured, the lower and paler one is "
            "the textbook's for its strategy. Lower is better; the notes below say why they "
            f"differ.{shown.left_out}",
            drawn(traces, "MiB a step (lower is better)", "", **layout),
            ["case", "collective", "measured", "by theory"],
            [
                [
                    shown.names[row.case.id],
                    one_line(op),
                    *map(_size, (of.measured.get(op), of.theory.get(op))),
                ]
                for row, of in zip(shown.rows, found, strict=True)
                for op in _operations([of])
            ],
            height=bars_height(len(found)) + 10 * len(found),
        )
    ]


def _volume(name: str, sizes: Sequence[float | None], offset: float, i: int) -> dict[str, Any]:
    places = [place + offset for place in range(len(sizes))]
    return bars(
        safe(name),
        places,
        [None if size is None else size / _MIB for size in sizes],
        i,
        width=0.36,
        hovertext=[f"{safe(name)}: {_size(size)}" for size in sizes],
        hoverinfo="text",
    )


def _size(size: float | None) -> str:
    return "none" if size is None else bytes_text(size)


def _operations(volumes: Sequence[Volume]) -> list[str]:
    """Return the operations by the bytes that they move or should, most first."""
    sums: dict[str, float] = {}
    for each in volumes:
        for op, size in (*each.measured.items(), *each.theory.items()):
            sums[op] = sums.get(op, 0.0) + size
    return sorted((op for op, size in sums.items() if size), key=lambda op: -sums[op])


def _bandwidths(cases: Sequence[CaseSummary], style: Style) -> list[Chart]:
    shown = Shown.of([row for row in cases if row.detail], cases)
    found = [
        (row, each)
        for row in shown.rows
        if row.detail
        for each in bandwidths(row.detail)
        # a norm or a flag says nothing of bandwidth
        if each.bytes > SCALAR
    ]
    if not found:
        return []
    families = dict.fromkeys(row.case.strategy.name for row, _ in found)
    most = max(found, key=lambda each: each[1].busbw)
    log = {"type": "log", "dtick": "D2"}
    return [
        Chart(
            "communication-busbw",
            "Bus bandwidth against message size",
            "Each mark is one kind of collective of one case at one message size: bus bandwidth as nccl-"
            "tests defines it, the median over its calls, higher is better. Both axes are logarithmic: where "
            f"marks fall to the left, messages are too small for the link.{shown.left_out}",
            drawn(
                [
                    _marks(family, [each for each in found if each[0].case.strategy.name == family], style)
                    for family in families
                ],
                "bytes of a message",
                "busbw, GB/s (higher is better)",
                xaxis=log,
                yaxis=log,
            ),
            ["case", "collective", "ranks", "message", "busbw, GB/s", "calls"],
            [[shown.names[row.case.id], *_bandwidth(each)] for row, each in found],
            told=f"The highest is {most[1].busbw / 1e9:.3g} GB/s, at {bytes_text(most[1].bytes)}.",
        )
    ]


def _bandwidth(of: Bandwidth) -> list[str]:
    size = bytes_text(of.bytes)
    return [one_line(of.op), str(of.group_size), size, f"{of.busbw / 1e9:.3g}", str(of.calls)]


def _marks(family: str, found: Sequence[tuple[CaseSummary, Bandwidth]], style: Style) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": safe(family),
        "x": [each.bytes for _, each in found],
        "y": [each.busbw / 1e9 for _, each in found],
        "hovertext": [
            hover(
                row.case.name,
                f"{one_line(each.op)} of {bytes_text(each.bytes)} among {each.group_size} ranks",
                f"busbw {each.busbw / 1e9:.3g} GB/s, median of {each.calls}",
            )
            for row, each in found
        ],
        "hoverinfo": "text",
        "customdata": [row.case.id for row, _ in found],
        "marker": style.marker(family) | {"size": 8},
    }


def _exposed(cases: Sequence[CaseSummary]) -> list[Chart]:
    known = {row.case.id: found for row in cases if (found := _communicating(row))}
    if not known:
        return []
    shown = Shown.of([row for row in cases if row.case.id in known], cases)
    parts = [known[row.case.id] for row in shown.rows]
    traces = [
        bars(
            name,
            range(len(parts)),
            [of[i] for of in parts],
            i,
            hovertext=[
                hover(row.case.name, f"{name}: {of[i]:.1%} of the step")
                for row, of in zip(shown.rows, parts, strict=True)
            ],
            hoverinfo="text",
            customdata=[row.case.id for row in shown.rows],
        )
        for i, name in enumerate(("exposed", "hidden by computation"))
    ]
    layout = {"barmode": "stack", "xaxis": {"tickformat": ".0%"}, "yaxis": shown.axis(shown.rows)}
    return [
        Chart(
            "communication-exposed",
            "Exposed communication",
            "Share of a profiled step in which a rank communicates (mean over ranks): what no computation "
            f"hides costs time, lower is better; what is hidden costs little on a GPU.{shown.left_out}",
            drawn(traces, "share of a step (exposed: lower is better)", "", **layout),
            ["case", "exposed", "hidden"],
            [
                [shown.names[row.case.id], *(f"{share:.1%}" for share in of)]
                for row, of in zip(shown.rows, parts, strict=True)
            ],
            height=bars_height(len(parts)),
        )
    ]


def _communicating(row: CaseSummary) -> tuple[float, float] | None:
    """Return the shares of a profiled step with exposed and with hidden communication."""
    step, comm, exposed = (row.values.get(f"{name}_s") for name in ("profile_step", "comm", "comm_exposed"))
    if step is None or comm is None or exposed is None or step.value <= 0 or comm.value <= 0:
        return None
    return exposed.value / step.value, max(0.0, comm.value - exposed.value) / step.value
