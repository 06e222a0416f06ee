"""The view ``memory``: what a rank keeps by kind, next to theory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.case_summary import MEMORY, CaseSummary
from distbench.analysis.memory import (
    MODEL_STATE_TOLERANCE,
    RankMemory,
    largest_rank_memory,
    smallest_device_memory,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import offloads_to_same_memory
from distbench.core.case import MODEL_STATES
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_value, parse_bytes
from distbench.strategies.engine import MEMORY_KINDS
from distbench.tables.table import Field, Table, TableRow
from distbench.views._peak_memory import peak_chart, peak_notes
from distbench.views.base import CASE_FIELDS, View, absence_reasons, case_cells, value_cell
from distbench.views.charts import palette
from distbench.views.charts.figures import (
    GREY,
    Bar,
    CaseAxis,
    Chart,
    ChartSelection,
    make_figure,
    scatter,
    stacked_bars,
)
from distbench.views.charts.memory import memory_case
from distbench.views.charts.pairs import default_pair, paired_figure

_MIB = 2**20
_CAPTION = (
    "{unit} of the rank with the largest model states, lower is better: each kind at its maximum over "
    "the phases of one counted step (after forward, backward and optimizer), so not all at the same "
    "time. optim.: optimizer states. master: weights that the optimizer updates in place of the "
    "parameters. buffers: communication buckets, and gathered shards. activ.: all other memory of the "
    "step. peak: maximum at one time in the timed steps on any rank, not necessarily this one. states: "
    "the first four together, next to ZeRO's table with the dtypes in use (theory)."
)


def _bytes(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "B", "lower")


_KINDS = (
    _bytes("parameters", "params", "Parameters, maximum over the phases of a step."),
    _bytes("gradients", "grads", "Gradients, maximum over the phases."),
    _bytes("optimizer_state", "optim.", "Optimizer states, maximum over the phases."),
    _bytes("master", "master", "Weights that the optimizer updates in place of the parameters."),
    _bytes("buffers", "buffers", "Communication buckets and gathered shards, maximum over the phases."),
    _bytes("activations", "activ.", "All other memory of the step, maximum over the phases."),
    _bytes("other", "other", "Memory of unknown kind."),
)
_LEGEND = {field.name: field.name for field in _KINDS}
_LEGEND |= {"optimizer_state": "optimizer states", "master": "master weights"}
"""Kind of memory -> label in the legend."""


class MemoryView(View):
    """A row for each case with a rank that reports what it keeps, and a chart of it by kind."""

    title = "Where memory goes"
    order = 40
    fields = (
        *CASE_FIELDS,
        *_KINDS,
        _bytes("memory_peak", "peak", "Maximum at one time on any rank in the timed steps."),
        _bytes("states", "states", "Model states: parameters, gradients, optimizer states, master weights."),
        _bytes("theory", "theory", "Model states by ZeRO's table with the dtypes in use."),
        Field("difference", "diff", "Model states over theory, less 1.", format="{:+.1%}".format),
        *(_bytes(f"{kind}_theory", "", f"{_LEGEND[kind].capitalize()} by theory.") for kind in MODEL_STATES),
    )

    def table(self, run: RunAnalysis) -> Table:
        measured = [row for row in run.cases if row.representative_trial is not None]
        names = run.short_names(measured)
        ranks = [
            (row, names[row.case.id], rank)
            for row in measured
            if (rank := largest_rank_memory(row.representative_trial))
        ]
        # one unit for the whole table, so its numbers are easy to compare
        whole = max((rank.maximum_or_zero("allocated") for *_, rank in ranks), default=0.0)
        # an old record has only the parts
        most = whole or max(
            (rank.maximum_or_zero(kind) for *_, rank in ranks for kind in MEMORY_KINDS), default=0.0
        )
        unit = format_bytes(most).split()[-1]
        size = parse_bytes(f"1 {unit}")
        notes = (
            *_differences(ranks, unit, size),
            *peak_notes(run, unit, size),
            *_host_memory_notes(ranks, unit, size),
            *_absence_notes(names, measured),
        )
        made = self.make_table([_row(*each) for each in ranks], notes, _CAPTION.format(unit=unit))
        in_unit = [replace(f, format=lambda v: f"{v / size:.2f}") if f.unit else f for f in self.fields]
        return replace(made, fields=tuple(in_unit))

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = ChartSelection.fastest(run, lambda row: largest_rank_memory(row.representative_trial))
        if not shown.items:
            return
        bars = [_bar(row, rank) for row, _, rank in shown.items]
        theory = [rank.theory.get("states") for *_, rank in shown.items]
        peaks = [row.values[MEMORY].value if MEMORY in row.values else None for row, *_ in shown.items]
        axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
        # a vertical line is a symbol without a fill: its color is that of its outline
        stroke = {"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": GREY}}
        circle = {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": GREY}
        traces = [
            *stacked_bars(
                bars, _LEGEND, palette.MEMORY, lambda _, size: format_value(size, "B"), _MIB, axis.positions
            ),
            *_marks("model states by theory", theory, stroke, axis.positions),
            *_marks("peak in the timed steps", peaks, circle, axis.positions),
        ]
        differences = [
            (abs(rank.difference), name) for _, name, rank in shown.items if rank.difference is not None
        ]
        finding = "Furthest from theory: {1}, by {0:.1%} of its model states."
        yield Chart(
            "memory-parts",
            "Memory of a rank by kind",
            "MiB of the rank with the largest model states, lower is better. Each kind is shown at its "
            "own maximum over the phases of a step, so a bar may exceed the true peak (circle). The "
            "model states are the first four parts; the vertical line is their size by ZeRO's table "
            "with the dtypes in use.",
            make_figure(traces, "MiB (lower is better)", rows=axis.labels, barmode="stack"),
            finding=finding.format(*max(differences)) if differences else "",
            left_out=shown.truncation_note,
        )
        yield from peak_chart(run)
        yield from _steps(shown)


def _steps(shown: ChartSelection[RankMemory]) -> Iterator[Chart]:
    made = [
        (row, choice)
        for row, name, rank in shown.items
        if (
            choice := memory_case(
                row.case.id, name, rank, _LEGEND, smallest_device_memory(row.representative_trial)
            )
        )
    ]
    if not made:
        return
    choices = [choice for _, choice in made]
    yield Chart(
        "memory-steps",
        "Memory over one step",
        "Phases of one counted step from top to bottom, of the rank with the largest model states; "
        "lower is better. Bars are samples: the memory at the end of each phase, by kind. Circles are "
        "peaks: maximum bytes of tensors at one time during the phase, as counted by the allocator; "
        "values in between are unknown. A line marks the memory of the device if it is known and at "
        "most four times as large.",
        paired_figure(choices, default_pair([row for row, _ in made]), "MiB (lower is better)", "stack"),
        height=150 + 2 * 34 * max(len(choice.rows) for choice in choices),
        left_out=shown.truncation_note,
    )


def _row(row: CaseSummary, name: str, rank: RankMemory) -> TableRow:
    return TableRow(
        {
            **case_cells(row.case, name),
            **{kind: rank.maximum(kind) for kind in (*MEMORY_KINDS, "activations", "other", "states")},
            **{f"{kind}_theory": rank.theory.get(kind) for kind in MODEL_STATES},
            "memory_peak": value_cell(row, MEMORY),
            "theory": rank.theory.get("states"),
            "difference": rank.difference,
        }
    )


def _bar(row: CaseSummary, rank: RankMemory) -> Bar:
    known = {kind: size for kind in MODEL_STATES if (size := rank.theory.get(kind)) is not None}
    theory = {kind: f"theory: {format_bytes(float(size))}" for kind, size in known.items()}
    return Bar(row.case.name, row.case.id, {kind: rank.maximum(kind) for kind in _LEGEND}, theory)


def _marks(
    name: str, sizes: Sequence[float | None], look: dict[str, Any], places: Sequence[int]
) -> list[dict[str, Any]]:
    known = {place: float(size) for place, size in zip(places, sizes, strict=True) if size}
    hovers = [f"{name}: {format_bytes(size)}" for size in known.values()]
    widths = [size / _MIB for size in known.values()]
    return [scatter(name, widths, known, hovers=hovers, marker=look)] if known else []


def _differences(
    ranks: Sequence[tuple[CaseSummary, str, RankMemory]], unit: str, size: float
) -> Iterator[str]:
    for _, name, rank in ranks:
        if rank.difference is None or abs(rank.difference) <= MODEL_STATE_TOLERANCE:
            continue
        kinds = [
            f"{kind.replace('_', ' ')} {excess / size:+.2f} {unit}" for kind, excess in rank.excess().items()
        ]
        why = rank.known_cause() or "no known cause"
        difference = f"{rank.difference:+.1%} ({join_limited(kinds)})"
        yield f"{name}: model states differ from theory by {difference}: {why}."


def _host_memory_notes(
    ranks: Sequence[tuple[CaseSummary, str, RankMemory]], unit: str, size: float
) -> Iterator[str]:
    for _, name, rank in ranks:
        if host := rank.maximum_or_zero("host"):
            yield f"{name}: {host / size:.2f} {unit} of it are in host memory, not on the device."
    on_cpu = [name for row, name, _ in ranks if offloads_to_same_memory(row.case, row.representative_trial)]
    if on_cpu:
        yield (
            f"{join_limited(on_cpu)}: on a CPU, offloaded states stay in the same memory, so nothing is "
            "saved."
        )


def _absence_notes(names: dict[str, str], rows: Sequence[CaseSummary]) -> Iterator[str]:
    columns = ("memory_states", "memory_activations", "memory_states_theory")
    for (column, reason), of in absence_reasons(rows, columns, names).items():
        yield f"No {column}: {reason} ({join_limited(of)})."
