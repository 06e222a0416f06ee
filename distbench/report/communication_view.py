"""The view ``communication``: what moved between ranks, what it took, and why so much."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.communication import Traffic, traffic
from distbench.analysis.parity import marked_names
from distbench.analysis.summary import CaseSummary
from distbench.analysis.volume import SCALAR, explanation
from distbench.report.tables import Table
from distbench.units import bytes_text, duration_text

_CAPTION = (
    "One step of a rank, mean over ranks and profiled steps, by kind of collective, with its number of "
    "calls. payload: the full array of each, as asked for; wire: what a rank sends, by the algorithm of "
    "what the backend ran; transfer: the shortest time of any rank of the group; wait: the rest, waiting "
    "for the slowest; exposed: not hidden by computation; algbw, busbw: GB/s as nccl-tests defines them, "
    "from payload and transfer. Less is better, but for those two. On a CPU, gloo's threads share the "
    "cores with the computation: hidden communication still slows it down, and busbw is that of memory."
)
_HEADINGS = ("collective", "payload", "wire", "transfer", "wait", "exposed", "algbw", "busbw")


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    rows: list[tuple[str, ...]] = []
    notes = []
    names = marked_names([row for row in cases if row.detail], cases)
    for row in cases:
        if row.detail is None:
            continue
        if kinds := traffic(row.detail):
            rows += [(names[row.case.id],), *(_row(each) for each in kinds)]
        if told := explanation(row.detail):
            notes.append(f"{names[row.case.id]}: {told}")
    return Table("communication", "Communication", _CAPTION, _HEADINGS, tuple(rows), tuple(notes))


def _row(each: Traffic) -> tuple[str, ...]:
    dtype = each.dtype.replace("float", "fp").replace("bfp", "bf")
    return (
        f"{each.calls:g} {each.op} {dtype}",
        bytes_text(each.bytes),
        "–" if each.wire_bytes is None else bytes_text(each.wire_bytes),
        _seconds(each.transfer_s),
        _seconds(each.wait_s),
        _seconds(each.exposed_s),
        # a norm or a flag says nothing of bandwidth
        *(_bandwidth(value if each.bytes > SCALAR else None) for value in (each.algbw, each.busbw)),
    )


def _bandwidth(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.3g}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else duration_text(value)
