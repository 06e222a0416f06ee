"""The view ``timeline``: what a few ranks did in one profiled step, and when they did nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, IdleGap, RankStep, rank_steps
from distbench.core.text import one_line
from distbench.core.units import format_duration, format_number
from distbench.record.run_folder import Run
from distbench.tables.foreign_text import PERFETTO_URL
from distbench.tables.table import CellValue, Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts import figures
from distbench.views.charts.figures import Chart
from distbench.views.charts.pairs import default_pair
from distbench.views.charts.timeline import TimelineCase, timeline_figure, timeline_height

_MAX_GAPS = 8
_MIN_GAP_SHARE = 0.01
"""Shortest reported gap as a share of a step."""

ShownCase = tuple[CaseSummary, str, list[RankStep]]
"""A case, its name, and its kept steps."""


def _ms(seconds: float) -> str:
    return format_number(seconds * 1e3)


def _time(name: str, heading: str, doc: str, *, cost: bool = False) -> Field:
    return Field(name, heading, doc, "s", "lower" if cost else None, format=_ms)


class TimelineView(View):
    """A row for each kept rank of each case with a profiled step."""

    title = "One step"
    order = 25
    collapsed = True
    caption = (
        "Milliseconds of one profiled step of the first trial that counts: the step of median length "
        "(of distbench trace, that in the middle), of up to four ranks (the first, the last, those with "
        "the most and the least work). forw., backw., optim., data, other: computation (on a GPU that of "
        "its kernels, by where they were launched; data: making the batch). comm: communication; expos.: "
        "the part that no computation hides; wait: the part that waits for the slowest rank of the "
        "group. idle: none of these ran, as when Python runs between operations. Computation and "
        "communication overlap, so that a row does not add up to its step. The profiler slows the step: "
        "compare parts, not steps. Lower is better."
    )
    fields = (
        *(replace(field, heading="") for field in CASE_FIELDS),
        Field("rank", "rank", "Rank, from 0 on.", type="bigint", format="rank {}".format),
        _time("step_s", "step", "Length of the step under the profiler."),
        _time("data_s", "data", "Making and moving the batch."),
        _time("forward_s", "forw.", "Computation of the forward pass."),
        _time("backward_s", "backw.", "Computation of the backward pass."),
        _time("optimizer_s", "optim.", "Computation of clipping and the update."),
        _time("other_s", "other", "Other computation."),
        _time("communication_s", "comm", "Communication; concurrent calls count once."),
        _time("exposed_s", "expos.", "Communication that no computation hides.", cost=True),
        _time("wait_s", "wait", "Communication that waits for the slowest rank of its group.", cost=True),
        _time("copy_s", "copies", "Copies to, from and on a GPU."),
        _time("idle_s", "idle", "Time in which none of these ran.", cost=True),
        _time("longest_gap_s", "", "Longest gap in which nothing ran."),
        _time("bridged_s", "", "Gaps up to this length are not shown."),
    )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = figures.ChartSelection.fastest(run, lambda row: _steps(row) or None)
        if not shown.items:
            return
        cases = [TimelineCase(row.case.id, name, steps) for row, name, steps in shown.items]
        yield Chart(
            "timeline-lanes",
            self.title,
            "What each recorded rank did in one profiled step: computation by phase, communication by "
            "collective, copies of a GPU; a lane is blank if nothing ran. Two cases on one axis of "
            "time; drag to zoom, double-click to return. Ranks of one node share its clock; clocks of "
            "several nodes are not compared. The profiler slows the steps.",
            timeline_figure(cases, default_pair([row for row, *_ in shown.items])),
            finding=_finding(shown.items),
            height=timeline_height(cases),
            left_out=shown.truncation_note,
        )

    def table(self, run: RunAnalysis) -> Table:
        shown = _shown(run)
        rows = [_row(row, name, step) for row, name, steps in shown for step in steps]
        notes = [*_gap_notes(shown), *_trace_notes(shown)] if rows else ["No profiled step was recorded."]
        made = self.make_table(rows, notes)
        if any(row.value("copy_s") for row in rows):
            return made
        # on a CPU, copies are operations and count as computation
        hidden = (replace(f, heading="") if f.name == "copy_s" else f for f in made.fields)
        return replace(made, fields=tuple(hidden))


def _finding(items: Sequence[ShownCase]) -> str:
    """Shares of the worst case's step in exposed communication, and idle."""
    exposed = max((_share(steps, partial(_exposed, row)), name) for row, name, steps in items)
    idle = max((_share(steps, lambda step: step.idle), name) for _, name, steps in items)
    return (
        f"Most exposed communication in the recorded step: {exposed[1]}, {exposed[0]:.0%} of it; most "
        f"idle: {idle[1]}, {idle[0]:.0%} (mean over the recorded ranks)."
    )


def _share(steps: Sequence[RankStep], seconds: Callable[[RankStep], float]) -> float:
    return statistics.fmean(seconds(step) / step.seconds for step in steps)


def _exposed(row: CaseSummary, step: RankStep) -> float:
    return _measured(
        row, step, "comm_exposed_s", [piece.exposed for piece in step.activities_of(COMMUNICATION)]
    )


def _measured(row: CaseSummary, step: RankStep, column: str, pieces: Sequence[float]) -> float:
    """Measured value of a rank for the kept step, or the sum of its *pieces* if not recorded.

    A message lasts until a rank waits for it, so pieces overlap and their sum may exceed the step.
    """
    kept = row.representative_trial.tables["timeline"][0].get("step") if row.representative_trial else None
    ranks = row.representative_trial.samples.get(column, []) if row.representative_trial else []
    steps = ranks[step.rank] if step.rank < len(ranks) else []
    seconds = steps[kept] if isinstance(kept, int) and kept < len(steps) else None
    return math.fsum(pieces) if seconds is None else seconds


def _steps(row: CaseSummary) -> list[RankStep]:
    return rank_steps(row.representative_trial) if row.representative_trial else []


def _shown(run: RunAnalysis) -> list[ShownCase]:
    found = [(row, steps) for row in run.cases if (steps := _steps(row))]
    names = run.short_names([row for row, _ in found])
    return [(row, names[row.case.id], steps) for row, steps in found]


def _row(row: CaseSummary, name: str, step: RankStep) -> TableRow:
    parts = {f"{part}_s": _busy(step, COMPUTE, part) for part in ("data", "forward", "backward", "optimizer")}
    computed = _busy(step, COMPUTE)
    unmarked = TableCell(None, reason="the trace does not mark the parts of its steps")
    moved = step.activities_of(COMMUNICATION)
    gaps = step.idle_gaps()
    cells: dict[str, TableCell | CellValue] = {
        **case_cells(row.case),
        "rank": step.rank,
        "step_s": step.seconds,
        **(parts if any(parts.values()) or not computed else dict.fromkeys(parts, unmarked)),
        "other_s": max(0.0, computed - math.fsum(parts.values())),
        "communication_s": _measured(row, step, "comm_s", [piece.busy for piece in moved]),
        "exposed_s": _exposed(row, step),
        "wait_s": math.fsum(piece.wait for piece in moved),
        "copy_s": _busy(step, COPY),
        "idle_s": step.idle,
        "longest_gap_s": gaps[0].seconds if gaps else 0.0,
        "bridged_s": step.merge_gap,
    }
    return TableRow(cells, name)


def _busy(step: RankStep, kind: str, name: str = "") -> float:
    return math.fsum(piece.busy for piece in step.activities_of(kind, name))


def _gap_notes(shown: Sequence[ShownCase]) -> Iterator[str]:
    """Longest gap of each case that is worth reporting, longest first."""
    longest = [(name, *found) for _, name, steps in shown if (found := _longest(steps))]
    for name, step, gap in sorted(longest, key=lambda each: -each[2].seconds)[:_MAX_GAPS]:
        after, before = (
            one_line(gap.previous) or "the start of the step",
            one_line(gap.following) or "its end",
        )
        yield (
            f"{name}, rank {step.rank}: idle for {format_duration(gap.seconds)} at "
            f"{format_duration(gap.begin)}, between {after} and {before}."
        )


def _longest(steps: Sequence[RankStep]) -> tuple[RankStep, IdleGap] | None:
    gaps = [(step, gap) for step in steps for gap in step.idle_gaps()[:1]]
    worth = [(step, gap) for step, gap in gaps if gap.seconds >= _MIN_GAP_SHARE * step.seconds]
    return max(worth, key=lambda pair: pair[1].seconds, default=None)


def _trace_notes(shown: Sequence[ShownCase]) -> Iterator[str]:
    """Locations of the full traces."""
    files = [
        (Run(Path()).trial_folder(row.case, row.representative_trial.round) / step.trace).as_posix()
        for row, _, steps in shown
        for step in steps
        if row.representative_trial and step.trace
    ]
    if files:
        more = f" ({len(files):,} in all)" if len(files) > 1 else ""
        first = one_line(files[0])
        yield f"Full traces are in the run's folder, open them at {PERFETTO_URL}: {first}{more}."
