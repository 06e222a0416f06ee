"""Chart of bus bandwidth against message size, for the view ``communication``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.collectives import COLLECTIVES_JOB, CollectiveResult, collective_results
from distbench.analysis.communication import MessageBandwidth, message_bandwidths
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_bytes, format_gb_per_s
from distbench.metrics.communication.traffic import SCALAR_BYTES
from distbench.record import records_of_kind
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, OPERATION, case_cells
from distbench.views.charts.figures import (
    GREY,
    CaseStyle,
    Chart,
    ChartSelection,
    byte_ticks,
    hover,
    log_ticks,
    make_figure,
    scatter,
)

_MESSAGE = (
    Field("group_size", "ranks", "Ranks of the process group.", type="bigint"),
    Field("nodes", "nodes", "Nodes that these ranks are on.", type="bigint"),
    Field("bytes", "message", "Payload of one call.", "B"),
    Field("busbw", "busbw, GB/s", "Median over the calls.", "B/s", "higher", format=format_gb_per_s),
    Field("calls", "calls", "Calls of this size.", type="bigint"),
)


def bandwidth_chart(run: RunAnalysis) -> Iterator[Chart]:
    """Chart of bus bandwidth; none without messages."""
    shown = ChartSelection.fastest(
        run, lambda row: message_bandwidths(row.representative_trial) if row.representative_trial else None
    )
    messages = [
        (row, name, each) for row, name, of in shown.items for each in of if each.bytes > SCALAR_BYTES
    ]
    if not messages:
        return
    style, families = (
        CaseStyle.for_cases(run.cases),
        group_by(messages, lambda item: item[0].case.strategy.name),
    )
    most = max((each for *_, each in messages), key=lambda each: each.busbw)
    rows = [TableRow({**case_cells(row.case, name), **vars(each)}) for row, name, each in messages]
    yield Chart(
        "communication-busbw",
        "Bus bandwidth against message size",
        "Each mark is one kind of collective of one case at one message size: bus bandwidth as "
        "nccl-tests defines it, the median over its calls, higher is better. Both axes are "
        "logarithmic: if the bandwidth falls to the left, messages are too small for the link. Lines "
        "are the same collectives alone, if the suite measures them.",
        make_figure(
            [
                *(_marks(family, of, style) for family, of in families.items()),
                *_baseline_lines(collective_results(records_of_kind(run.records, COLLECTIVES_JOB))),
            ],
            "size of a message",
            "busbw, GB/s (higher is better)",
            xaxis={"type": "log", **byte_ticks(each.bytes for *_, each in messages)},
            yaxis={"type": "log", **log_ticks(each.busbw / 1e9 for *_, each in messages)},
        ),
        Table("", "", (*CASE_FIELDS, OPERATION, *_MESSAGE), tuple(rows)),
        finding=f"Highest bus bandwidth: {format_gb_per_s(most.busbw)} GB/s, at {format_bytes(most.bytes)}.",
        height=340,
        left_out=shown.truncation_note,
    )


def _baseline_lines(alone: Sequence[CollectiveResult]) -> Iterator[dict[str, Any]]:
    """A grey line for each operation and group that was measured alone."""
    for (op, among), same in group_by(alone, lambda each: (each.key.op, each.key.participants)).items():
        points = sorted((each.key.bytes, each.busbw.value / 1e9) for each in same)
        yield scatter(
            f"{op} alone, {among}",
            [size for size, _ in points],
            [busbw for _, busbw in points],
            "lines",
            line={"color": GREY, "width": 1},
        )


def _marks(
    family: str, messages: Sequence[tuple[CaseSummary, str, MessageBandwidth]], style: CaseStyle
) -> dict[str, Any]:
    return scatter(
        family,
        [each.bytes for *_, each in messages],
        [each.busbw / 1e9 for *_, each in messages],
        hovers=[
            hover(
                row.case.name,
                f"{one_line(each.op)} of {format_bytes(each.bytes)} among {_participants(each)}",
                f"busbw {format_gb_per_s(each.busbw)} GB/s, median of {each.calls}",
            )
            for row, _, each in messages
        ],
        cases=[row.case.id for row, *_ in messages],
        marker=style.marker(family) | {"size": 8},
    )


def _participants(of: MessageBandwidth) -> str:
    return f"{of.group_size} ranks" + (f" on {of.nodes} nodes" if of.nodes > 1 else "")
