"""The view ``pipeline``: how long each rank of a pipeline waits, and the schedule as it really ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.pipeline import RankWaits, StageActivations, pipeline_passes, rank_waits
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_number
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells, value_cell
from distbench.views.charts.figures import Chart, ChartSelection
from distbench.views.charts.pairs import default_pair
from distbench.views.charts.pipeline import MAX_BOXES, ScheduleCase, schedule_figure, schedule_height

_ACTIVATIONS_UNKNOWN = "the activations of a forward pass or the theoretical number in flight are unknown"


def _ms(seconds: float) -> str:
    return format_number(seconds * 1e3)


def _mib(size: float) -> str:
    return format_number(size / 2**20)


class PipelineView(View):
    """A row for each rank of each pipeline whose steps were profiled."""

    title = "Pipelines"
    order = 27
    caption = (
        "Mean over the profiled steps of the first trial that counts, in milliseconds. bubble: the "
        "share of the step in which a rank computes nothing and waits for another; theory: the same if "
        "all stages take equally long and messages take no time. waits: the bubble's time; messages: "
        "the time in which a rank computes nothing while a message is under way: exposed "
        "communication. Lower is better. in flight: of how many micro-batches each stage kept "
        "activations at once, and by the schedule's theory; activ.: maximum MiB of activations, and "
        "the activations of one forward pass times the theory of in flight, summed over the rank's "
        "stages. The profiler slows the step: compare shares, not steps."
    )
    fields = (
        *(replace(field, heading="") for field in CASE_FIELDS),
        Field("rank", "rank", "Rank, from 0 on.", type="bigint", format="rank {}".format),
        Field("stages", "stages", "Its stages, from 0 on.", type="varchar"),
        Field("step_s", "step", "Length of the step under the profiler.", "s", format=_ms),
        Field("bubble", "bubble", "Waiting, as a share of the step.", "", "lower", format=PERCENT),
        Field("bubble_theory", "theory", "The same by theory, mean over ranks.", format=PERCENT),
        Field("bubble_s", "waits", "Computes nothing and waits for another rank.", "s", "lower", format=_ms),
        Field("transfer_s", "messages", "Computes nothing while a message moves.", "s", "lower", format=_ms),
        Field("in_flight", "in flight", "Micro-batches kept at once by each of its stages.", type="varchar"),
        Field("in_flight_theory", "theory", "The same by the schedule's theory.", type="varchar"),
        Field(
            "activations", "activ.", "Maximum activations at the end of a phase.", "B", "lower", format=_mib
        ),
        Field(
            "activations_theory",
            "theory",
            (
                "Activations of one forward pass, times the micro-batches in flight by theory, summed over "
                "its stages."
            ),
            "B",
            "lower",
            format=_mib,
        ),
    )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        drawn = {
            row.case.id: found
            for row in run.cases
            if row.representative_trial and (found := pipeline_passes(row.representative_trial))
        }
        largest = max(map(len, drawn.values()), default=MAX_BOXES)
        shown = ChartSelection.fastest(run, lambda row: drawn.get(row.case.id), max(1, MAX_BOXES // largest))
        if not shown.items or largest > MAX_BOXES:
            return
        cases = [ScheduleCase(row.case.id, name, found) for row, name, found in shown.items]
        yield Chart(
            "pipeline-schedule",
            "The schedule as it ran",
            "One profiled step, a lane for each rank: each box is a pass of a stage over a "
            "micro-batch, labelled with their numbers (stage.micro-batch, from 0 on). In a blank part "
            "of a lane the rank waits, sends or receives messages, or does other work. Two cases on "
            "one axis of time; drag to zoom, double-click to return. Ranks of one node share its "
            "clock; clocks of several nodes are not compared.",
            schedule_figure(cases, default_pair([row for row, *_ in shown.items])),
            finding=_finding([row for row, *_ in shown.items], shown.names),
            height=schedule_height(cases),
            left_out=shown.truncation_note,
        )

    def table(self, run: RunAnalysis) -> Table:
        found = [
            (row, ranks)
            for row in run.cases
            if row.representative_trial and (ranks := rank_waits(row.representative_trial))
        ]
        names = run.short_names([row for row, _ in found])
        rows = [_row(row, names[row.case.id], rank) for row, ranks in found for rank in ranks]
        return self.make_table(rows, [] if rows else ["No pipeline step was profiled."])


def _row(row: CaseSummary, name: str, of: RankWaits) -> TableRow:
    return TableRow(
        {
            **case_cells(row.case),
            "rank": of.rank,
            "stages": _per_stage(of, lambda stage: stage.number),
            "step_s": of.step_s,
            "bubble": TableCell(of.bubble, reason=row.absence_reasons.get("bubble", "")),
            "bubble_theory": value_cell(row, "bubble_theory"),
            "bubble_s": TableCell(of.bubble_s, reason=row.absence_reasons.get("bubble_s", "")),
            "transfer_s": TableCell(of.message_s, reason=row.absence_reasons.get("pipeline_transfer_s", "")),
            "in_flight": _per_stage(of, lambda stage: stage.in_flight),
            "in_flight_theory": _per_stage(of, lambda stage: stage.in_flight_theory),
            "activations": TableCell(
                of.activations, reason=row.absence_reasons.get("memory_activations", "")
            ),
            "activations_theory": TableCell(of.activations_theory, reason=_ACTIVATIONS_UNKNOWN),
        },
        name,
    )


def _per_stage(of: RankWaits, number: Callable[[StageActivations], int | None]) -> TableCell:
    """Cell with a number for each stage of a rank."""
    numbers = [number(stage) for stage in of.stages]
    if None in numbers:
        return TableCell(None, reason="the engine does not report it")
    return TableCell(", ".join(map(str, numbers)))


def _finding(rows: list[CaseSummary], names: list[str]) -> str:
    """Pipeline that waits most; empty: unknown."""
    known = [
        (row.values["bubble"].value, name, row.values.get("bubble_theory"))
        for row, name in zip(rows, names, strict=True)
        if "bubble" in row.values
    ]
    if not known:
        return ""
    share, name, theory = max(known, key=lambda each: each[0])
    beside = f" ({theory.value:.0%} by theory)" if theory else ""
    return f"Largest bubble: {name}, {share:.0%} of the step{beside}, mean over ranks."
