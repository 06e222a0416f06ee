"""View ``links``: nccl-tests' table, and bus bandwidth against message size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from distbench.analysis.collectives import (
    COLLECTIVES_JOB,
    CollectiveKey,
    CollectiveResult,
    UnmeasuredCollective,
    collective_results,
    unmeasured_collectives,
)
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by, group_pairs
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_bytes
from distbench.record import Status, records_of_kind
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import View
from distbench.views.charts.figures import SYMBOLS, Chart, error_bars, hover, make_figure, scatter
from distbench.views.charts.palette import collective_color

_EMPTY_NOTE = "This run measured no collectives: its suite has no section collectives."
_FORMS = {"all_reduce": "in place", "broadcast": "in place"}
_REDUCES = ("all_reduce", "reduce_scatter")


def _gigabytes_text(value: float) -> str:
    """Format *value* bytes per second in GB/s, with enough digits for a slow link."""
    return f"{value / 1e9:.2f}" if value >= 1e9 else f"{value / 1e9:.3g}"


def _microseconds_text(value: float) -> str:
    return f"{value * 1e6:.1f}" if value < 1e-3 else f"{value * 1e6:.0f}"


def _spread(value: float) -> str:
    """Format a relative spread; an interval above 100% is useless, so its value is omitted."""
    return f"{value:.1%}" if value < 1 else ">100%"


class CollectivesView(View):
    """nccl-tests' table, and bus bandwidth against message size."""

    title: ClassVar[str] = "Collectives"
    order: ClassVar[int] = 45
    in_overview: ClassVar[bool] = True
    caption: ClassVar[str] = (
        "As nccl-tests defines them: size of the full array in bytes; count of elements, of a rank's share "
        "where there are shares; time of a call on the slowest rank; algbw in GB/s: size over time; busbw in "
        "GB/s: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, 1 "
        "for broadcast and send_recv, higher is better; ±: half its 95% interval over trials; wrong: "
        "elements of the result."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        Field("bytes", "size", "Full array.", "B", type="bigint", format="{:d}".format),
        Field("count", "count", "Elements as nccl-tests counts.", type="bigint", format="{:d}".format),
        Field("dtype", "type", "Dtype of the elements.", type="varchar"),
        Field("redop", "redop", "Reduction; none if nothing is reduced.", type="varchar"),
        Field("root", "root", "Place of the root; -1: none.", type="bigint", format="{:d}".format),
        Field(
            "seconds",
            "time us",
            "Time of a call on the slowest rank.",
            "s",
            "lower",
            format=_microseconds_text,
        ),
        Field("algbw", "algbw", "Size over time.", "B/s", "higher", format=_gigabytes_text),
        Field("busbw", "busbw", "By the factor of the operation.", "B/s", "higher", format=_gigabytes_text),
        Field("spread", "±", "Half the 95% interval of busbw over trials.", format=_spread),
        Field("wrong", "wrong", "Elements with a wrong result.", type="bigint", format="{:d}".format),
        Field("busbw_low", "", "Lower end of the 95% interval of busbw.", "B/s"),
        Field("busbw_high", "", "Upper end of the 95% interval of busbw.", "B/s"),
        Field("trials", "", "Launches.", type="bigint"),
        Field("iterations", "", "Timed calls of all trials.", type="bigint"),
        Field("fastest_s", "", "Shortest call.", "s", "lower"),
        Field("slowest_s", "", "Longest call.", "s", "lower"),
        Field("op", "", "Operation.", type="varchar"),
        Field("group_name", "", "Ranks that take part: all, node or between.", type="varchar"),
        Field("group_size", "", "Ranks of a group.", type="bigint"),
        Field("nodes", "", "Nodes that the ranks of a group are on.", type="bigint"),
        Field("form", "", "in place or out of place, as in trainings.", type="varchar"),
        Field("device", "", "cpu or cuda.", type="varchar"),
        Field("world_size", "", "Devices.", type="bigint"),
        Field("case_name", "", "Name of the case.", type="varchar"),
        Field(
            "case_id",
            "",
            "Id of the case: the same for this number of devices in every suite.",
            type="varchar",
        ),
    )

    def table(self, run: RunAnalysis) -> Table:
        """Table with a row per operation, group, dtype and size."""
        records = records_of_kind(run.records, COLLECTIVES_JOB)
        if not records:
            return self.make_table([], [_EMPTY_NOTE])
        made = collective_results(records)
        failed = [record for record in records if record.status is not Status.MEASURED]
        notes = [
            *_best(made),
            *_wrong(made),
            *_missing(unmeasured_collectives(records)),
            *(f"{record.case.name}: {record.status}: {one_line(record.reason)}." for record in failed),
        ]
        best = {top.key for _, tops in _best_results(made) for top in tops}
        return self.make_table([_row(result, is_best=result.key in best) for result in made], notes)

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        """Bus bandwidth by size, one line per operation; a chart for each group and dtype."""
        made = collective_results(records_of_kind(run.records, COLLECTIVES_JOB))
        for number, same in enumerate(group_by(made, _chart_of).values()):
            yield _chart(number, same)

    def is_requested(self, run: RunAnalysis) -> bool:
        """True if collectives were requested."""
        return bool(records_of_kind(run.records, COLLECTIVES_JOB))


def _row(result: CollectiveResult, *, is_best: bool) -> TableRow:
    key, busbw = result.key, result.busbw
    has_spread = busbw.half_log_width is not None
    form = _FORMS.get(key.op, "out of place")
    return TableRow(
        {
            **{name: value for name, value in key._asdict().items() if name != "group"},
            "group_name": key.group,
            "count": result.count,
            "redop": "sum" if key.op in _REDUCES else "none",
            "root": 0 if key.op == "broadcast" else -1,
            "seconds": result.seconds,
            "algbw": result.algbw,
            "busbw": busbw.value,
            "spread": (busbw.high / busbw.value - 1)
            if has_spread
            else TableCell(None, reason="one trial has no spread"),
            "busbw_low": busbw.low if has_spread else None,
            "busbw_high": busbw.high if has_spread else None,
            "trials": busbw.trials,
            "iterations": result.iterations,
            "fastest_s": result.fastest_s,
            "slowest_s": result.slowest_s,
            "wrong": TableCell(None, "n/a", "collectives.check = false")
            if result.wrong_elements is None
            else result.wrong_elements,
            "form": form,
            "case_name": result.case.name,
            "case_id": result.case.id,
        },
        group=f"{key.op}, {form}, {key.participants}",
        emphasis="bad" if result.wrong_elements else "best" if is_best else "",
    )


def _best_results(made: Sequence[CollectiveResult]) -> Iterator[tuple[str, list[CollectiveResult]]]:
    """Yield the ranks that take part, and the result with the highest busbw of each operation among them."""
    for same in group_by(made, lambda result: (result.key.world_size, result.key.group)).values():
        by_op = group_by(same, lambda result: result.key.op).values()
        yield same[0].key.participants, [max(of, key=lambda result: result.busbw.value) for of in by_op]


def _best(made: Sequence[CollectiveResult]) -> Iterator[str]:
    for among, tops in _best_results(made):
        text = ", ".join(
            f"{top.key.op} {_gigabytes_text(top.busbw.value)} ({format_bytes(top.key.bytes)})" for top in tops
        )
        yield f"Highest busbw among {among}, GB/s: {text}."


def _wrong(made: Sequence[CollectiveResult]) -> Iterator[str]:
    wrong = [result for result in made if result.wrong_elements]
    for result in wrong:
        yield f"WRONG RESULT: {result.key}: {result.wrong_elements:,} elements."
    if made and not wrong and all(result.wrong_elements is not None for result in made):
        yield f"All results are correct: {len(made)} combinations, each element."


def _missing(found: Sequence[UnmeasuredCollective]) -> Iterator[str]:
    for reason, what in group_pairs((each.reason, each) for each in found).items():
        names = dict.fromkeys(
            f"group {each.group}" if each.is_group else f"{each.op} in {each.dtype} ({each.group})"
            for each in what
        )
        yield f"Not measured: {join_limited(list(names))}: {one_line(reason)}."


def _chart_of(result: CollectiveResult) -> tuple[object, ...]:
    key = result.key
    return key.device, key.world_size, key.group, key.group_size, key.nodes, key.dtype


def _chart(number: int, same: Sequence[CollectiveResult]) -> Chart:
    key = same[0].key
    best = max(same, key=lambda result: result.busbw.value)
    log = {"type": "log", "dtick": "D2"}
    lines = group_by(same, lambda result: result.key.op)
    return Chart(
        f"collectives-busbw-{number}",
        f"Bus bandwidth of collectives among {key.participants}, {key.dtype}",
        "Bus bandwidth as nccl-tests defines it, by the size of the full array; mean over trials with its "
        "95% interval, higher is better. Both axes are logarithmic.",
        make_figure(
            [_line(i, op, of) for i, (op, of) in enumerate(lines.items())],
            "size, bytes",
            "busbw, GB/s (higher is better)",
            xaxis=log,
            yaxis=log,
        ),
        finding=f"Highest bus bandwidth: {_gigabytes_text(best.busbw.value)} GB/s, {_text(best.key)}.",
    )


def _line(number: int, op: str, of: Sequence[CollectiveResult]) -> dict[str, object]:
    return scatter(
        op,
        [result.key.bytes for result in of],
        [result.busbw.value / 1e9 for result in of],
        "lines+markers",
        hovers=[
            hover(
                op,
                _text(result.key),
                f"busbw {_gigabytes_text(result.busbw.value)} GB/s, {_microseconds_text(result.seconds)} us",
            )
            for result in of
        ],
        line={"color": collective_color(op)},
        # operations without a colour in the palette share one
        marker={"symbol": SYMBOLS[number % len(SYMBOLS)]},
        error_y=error_bars(
            [tuple(end / 1e9 for end in (r.busbw.low, r.busbw.value, r.busbw.high)) for r in of]  # type: ignore[misc]
        ),
    )


def _text(key: CollectiveKey) -> str:
    return f"{key.op} of {format_bytes(key.bytes)}"
