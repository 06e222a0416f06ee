"""The view ``memory``: what a rank keeps by kind, next to theory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.case_summary import MEMORY, CaseSummary
from distbench.analysis.memory import TOLERANCE, Held, device_memory, held
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import offloads_in_vain
from distbench.core.case import MODEL_STATES
from distbench.core.grouping import gathered
from distbench.core.text import listed
from distbench.core.units import bytes_text, parse_bytes
from distbench.report import memory_chart, palette
from distbench.report.axes import Rows
from distbench.report.figures import GREY, Chart, Shown, bars, drawn, scatter
from distbench.report.pairs import opposites, paired
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.strategies.engine import MEMORY_KINDS
from distbench.tables.table import Field, Row, Sheet

_MIB = 2**20
_CAPTION = (
    "{unit} of the rank with the largest model states, lower is better: each kind at its largest over the "
    "phases of one counted step (after forward, backward and optimizer), so not all at the same time. "
    "optim.: optimizer states. master: weights that the optimizer updates in place of the parameters. "
    "buffers: communication buckets, and gathered shards. activ.: what the step adds to all that. peak: most "
    "at once in the timed steps on any rank, which need not be this one. states: the first four together, "
    "next to ZeRO's table with the dtypes in use (theory)."
)


def _bytes(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "B", "lower")


_KINDS = (
    _bytes("parameters", "params", "Parameters, at their largest over the phases of a step."),
    _bytes("gradients", "grads", "Gradients, at their largest."),
    _bytes("optimizer_state", "optim.", "Optimizer states, at their largest."),
    _bytes("master", "master", "Weights that the optimizer updates in place of the parameters."),
    _bytes("buffers", "buffers", "Communication buckets and gathered shards, at their largest."),
    _bytes("activations", "activ.", "What the step adds to all other kinds, at its largest."),
    _bytes("other", "other", "What no kind explains."),
)
_PARTS = {field.name: field.name for field in _KINDS}
_PARTS |= {"optimizer_state": "optimizer states", "master": "master weights"}
"""Kind of memory -> what the legend calls it."""


class MemoryView(View):
    """A row for each case with a rank that reports what it keeps, and a chart of it by kind."""

    title = "Where memory goes"
    place = 40
    fields = (
        *CASE,
        *_KINDS,
        _bytes("memory_peak", "peak", "Most at once on any rank in the timed steps."),
        _bytes("states", "states", "Model states: parameters, gradients, optimizer states, master weights."),
        _bytes("theory", "theory", "Model states by ZeRO's table with the dtypes in use."),
        Field("difference", "diff", "Model states over theory, less 1.", format="{:+.1%}".format),
        *(_bytes(f"{kind}_theory", "", f"{_PARTS[kind].capitalize()} by theory.") for kind in MODEL_STATES),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        measured = [row for row in run.cases if row.detail is not None]
        names = run.names(measured)
        ranks = [(row, names[row.case.id], rank) for row in measured if (rank := held(row.detail))]
        # one unit for the whole table, so that its numbers compare at a glance
        whole = max((rank.most("allocated") for *_, rank in ranks), default=0.0)
        # an old record has its parts alone
        most = whole or max((rank.most(kind) for *_, rank in ranks for kind in MEMORY_KINDS), default=0.0)
        unit = bytes_text(most).split()[-1]
        size = parse_bytes(f"1 {unit}")
        notes = (
            *_differences(ranks, unit, size),
            *_passing(ranks, unit, size),
            *_host(ranks, unit, size),
            *_missing(names, measured),
        )
        made = self.made([_row(*each) for each in ranks], notes, _CAPTION.format(unit=unit))
        in_unit = [replace(f, format=lambda v: f"{v / size:.2f}") if f.unit else f for f in self.fields]
        return replace(made, fields=tuple(in_unit))

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        shown = Shown.of(run, lambda row: held(row.detail))
        if not shown.items:
            return
        sheet = self.made([_row(*each) for each in shown.items])
        axis = Rows.of((row, name) for row, name, _ in shown.items)
        # an upright line is a symbol of strokes alone: its colour is that of its outline
        stroke = {"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": GREY}}
        circle = {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": GREY}
        traces = [
            *bars(sheet, _PARTS, palette.MEMORY, _MIB, _theory_of, axis.places),
            *_marks("model states by theory", sheet, "theory", stroke, axis.places),
            *_marks("peak in the timed steps", sheet, "memory_peak", circle, axis.places),
        ]
        apart = [(abs(rank.difference), name) for _, name, rank in shown.items if rank.difference is not None]
        finding = "Furthest from theory: {1}, by {0:.1%} of its model states."
        yield Chart(
            "memory-parts",
            "Memory of a rank by kind",
            "MiB of the rank with the largest model states, lower is better. Each kind is at its "
            "largest over the phases of a step, so a bar may be longer than the peak (circle), at "
            "which they are not all at their largest. The model states are the first four parts; the "
            f"upright line is what ZeRO's table says they need in the dtypes in use.{shown.left_out}",
            drawn(traces, "MiB (lower is better)", rows=axis.labels, barmode="stack"),
            finding=finding.format(*max(apart)) if apart else "",
        )
        yield from _steps(shown)


def _steps(shown: Shown[Held]) -> Iterator[Chart]:
    made = [
        (row, choice)
        for row, name, rank in shown.items
        if (choice := memory_chart.choice(row.case.id, name, rank, _PARTS, device_memory(row.detail)))
    ]
    if not made:
        return
    choices = [choice for _, choice in made]
    yield Chart(
        "memory-steps",
        "Memory over one step",
        "Phases of one counted step from top to bottom, of the rank with the largest model states; lower is "
        "better. Bars are what it holds when a phase ends, by kind: a sample. Circles are peaks: most "
        "bytes of tensors at once during the phase, by the allocator's own books. What lies between is not "
        "known. Where the device's memory is known and not over four times as much, a line shows it."
        f"{shown.left_out}",
        paired(choices, opposites([row for row, _ in made]), "MiB (lower is better)", "stack"),
        height=150 + 2 * 34 * max(len(choice.rows) for choice in choices),
    )


def _row(row: CaseSummary, name: str, rank: Held) -> Row:
    return Row(
        {
            **case_cells(row.case, name),
            **{kind: rank.find(kind) for kind in (*MEMORY_KINDS, "activations", "other", "states")},
            **{f"{kind}_theory": rank.theory.get(kind) for kind in MODEL_STATES},
            "memory_peak": measured_cell(row, MEMORY),
            "theory": rank.theory.get("states"),
            "difference": rank.difference,
        }
    )


def _theory_of(row: Row, kind: str) -> list[str]:
    theory = row.value(f"{kind}_theory")
    return [f"theory: {bytes_text(float(theory))}"] if theory is not None else []


def _marks(
    name: str, sheet: Sheet, column: str, look: dict[str, Any], places: Sequence[int]
) -> list[dict[str, Any]]:
    rows = zip(places, sheet.rows, strict=True)
    known = {place: float(size) for place, row in rows if (size := row.value(column))}
    hovers = [f"{name}: {bytes_text(size)}" for size in known.values()]
    sizes = [size / _MIB for size in known.values()]
    return [scatter(name, sizes, known, hovers=hovers, marker=look)] if known else []


def _differences(ranks: Sequence[tuple[CaseSummary, str, Held]], unit: str, size: float) -> Iterator[str]:
    for _, name, rank in ranks:
        if rank.difference is None or abs(rank.difference) <= TOLERANCE:
            continue
        kinds = [
            f"{kind.replace('_', ' ')} {excess / size:+.2f} {unit}" for kind, excess in rank.excess().items()
        ]
        why = rank.cause() or "no known cause"
        yield f"{name}: model states differ from theory by {rank.difference:+.1%} ({listed(kinds)}): {why}."


def _passing(ranks: Sequence[tuple[CaseSummary, str, Held]], unit: str, size: float) -> Iterator[str]:
    """Peaks that the kinds don't explain, as what made most of them is gone whenever a phase ends."""
    for _, name, rank in ranks:
        phase, passing = rank.passing
        if passing > rank.most("allocated"):
            told = f"{passing / size:,.2f} {unit} of its peak come and go within the phase {phase}"
            yield f"{name}: {told}, so no other column has them; buckets that are freed at its end do so."


def _host(ranks: Sequence[tuple[CaseSummary, str, Held]], unit: str, size: float) -> Iterator[str]:
    for _, name, rank in ranks:
        if host := rank.most("host"):
            yield f"{name}: {host / size:.2f} {unit} of it are in host memory, not on the device."
    on_cpu = [name for row, name, _ in ranks if offloads_in_vain(row.case, row.detail)]
    if on_cpu:
        yield f"{listed(on_cpu)}: on a CPU, offloaded states stay in the same memory: nothing is saved."


def _missing(names: dict[str, str], rows: Sequence[CaseSummary]) -> Iterator[str]:
    reasons = gathered(
        (f"No {column}: {reason}", names[row.case.id])
        for row in rows
        for column in ("memory_states", "memory_activations", "memory_states_theory")
        if column in row.columns and (reason := row.absent.get(column))
    )
    return (f"{reason} ({listed(of)})." for reason, of in reasons.items())
