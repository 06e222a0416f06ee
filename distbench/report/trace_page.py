"""Offline page of the traces of a job: losses, parts of the steps, a timeline, and all tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from distbench.analysis.step_timeline import COMMUNICATION, COMPUTE, COPY, Activity, RankStep
from distbench.analysis.traces.breakdown import Piece
from distbench.analysis.traces.losses import Loss
from distbench.analysis.traces.rank_trace import JobTrace, RankTrace
from distbench.core.units import format_duration, format_percent
from distbench.report import html
from distbench.report.html import Chapter
from distbench.report.trace_fields import largest_rows
from distbench.report.trace_overview import largest_losses, loss_sentence, step_sentence
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.tables.table import Table
from distbench.traces.intervals import intersection, length
from distbench.views.charts.figures import Bar, Chart, make_figure, stacked_bars
from distbench.views.charts.palette import COMMUNICATION as COMMUNICATION_COLORS
from distbench.views.charts.palette import COPIES, STEP_PARTS
from distbench.views.charts.timeline import TimelineCase, timeline_figure, timeline_height

_MOST_STEPS = 60
_MOST_RANKS = 4
_RESOLUTION = 2000
"""Gaps shorter than the step over this number are not shown: a screen is hardly wider."""
_PARTS = {
    "compute_s": "computation",
    "exposed_comm_s": "exposed communication",
    "exposed_copy_s": "exposed copies",
    "idle_s": "idle",
}
_COLORS = {
    "compute_s": STEP_PARTS["other"],
    "exposed_comm_s": COMMUNICATION_COLORS["exposed"],
    "exposed_copy_s": COPIES,
    "idle_s": STEP_PARTS["idle"],
}


def write(job: JobTrace, tables: dict[str, Table], notes: Sequence[str], file: Path) -> None:
    """Write the page of *job* with *tables* by name, and *notes* on what the traces lack, to *file*.

    Raises:
        InfrastructureError: the file can't be written.
    """
    chapters = [*_chapters(job, tables)]
    losses = [_loss_text(loss, job) for loss in largest_losses(job)]
    page = html.render(
        "trace.html",
        chapters,
        sentence=step_sentence(job),
        losses=losses,
        notes=notes,
        files=[rank.path.name for rank in job.ranks],
    )
    with infrastructure_errors(file):
        write_atomic(file, page)


def _loss_text(loss: Loss, job: JobTrace) -> str:
    cost = f"{format_duration(loss.seconds)} ({format_percent(loss.share)})"
    return f"{cost} {loss_sentence(loss, job)}. {loss.advice}"


def _chapters(job: JobTrace, tables: dict[str, Table]) -> Iterator[Chapter]:
    for name, table in tables.items():
        if not table.rows:
            continue
        charts = [_steps_chart(table), _timeline_chart(job)] if name == "steps" else []
        # the key findings are those of the losses
        shown = largest_rows(table)
        yield Chapter(f"trace-{name}", table.title, charts, shown, table_collapsed=name == "losses")


def _steps_chart(table: Table) -> Chart:
    rows = table.rows[:_MOST_STEPS]
    names = [f"rank {row.value('rank')}, step {row.value('step')}" for row in rows]
    bars = [
        Bar(name, "", {part: float(row.value(part) or 0) for part in _PARTS})
        for name, row in zip(names, rows, strict=True)
    ]
    return Chart(
        "trace-steps-parts",
        "Parts of each step",
        table.caption,
        make_figure(
            stacked_bars(bars, _PARTS, _COLORS, lambda _, seconds: format_duration(seconds or 0.0), 1e-3),
            "ms",
            rows=names,
            barmode="stack",
        ),
        left_out=f"The first {_MOST_STEPS} of {len(table.rows):,} steps are shown."
        if len(table.rows) > _MOST_STEPS
        else "",
    )


def _timeline_chart(job: JobTrace) -> Chart:
    ranks = job.ranks[:_MOST_RANKS]
    steps = [_rank_step(rank) for rank in ranks]
    case = TimelineCase("", "step of median length of each rank", steps)
    left_out = (
        f"The first {_MOST_RANKS} of {len(job.ranks)} ranks are shown." if len(job.ranks) > len(ranks) else ""
    )
    return Chart(
        "trace-timeline-lanes",
        "Timeline",
        "What each rank did in its step of median length: computation, communication by collective, copies; "
        "a lane is blank if nothing ran. Each rank begins at 0, whenever it began. Drag to zoom, "
        "double-click to return.",
        timeline_figure([case], [0]),
        height=timeline_height([case]),
        left_out=left_out,
    )


def _rank_step(rank: RankTrace) -> RankStep:
    """The step of median length of *rank*, from 0 on."""
    lengths = [step.seconds for step in rank.steps]
    number = lengths.index(statistics.median_high(lengths))
    begin, end = rank.steps[number].interval
    pieces = rank.pieces[number]
    busy = math.fsum(piece.seconds for piece in pieces if piece.idle is None)
    activities = sorted(_activities(rank, begin, end, pieces), key=lambda activity: activity.begin)
    step = RankStep(rank.rank, 0.0, end - begin, busy, (end - begin) / _RESOLUTION, "", tuple(activities))
    return step.merged_to(len(activities) // 2)


def _activities(rank: RankTrace, begin: float, end: float, pieces: Sequence[Piece]) -> Iterator[Activity]:
    for piece in pieces:
        if piece.kind == "compute" and piece.work is not None:
            name = "recomputation" if piece.work.is_recomputed else "computation"
            yield Activity(COMPUTE, name, "", piece.begin - begin, piece.end - begin, piece.seconds)
    exposed = [(piece.begin, piece.end) for piece in pieces if piece.kind == "communication"]
    for call in rank.collectives:
        for part in intersection(call.intervals, [(begin, end)]):
            shown = length(intersection([part], exposed))
            waited = min(call.wait_s or 0.0, part[1] - part[0])
            at = part[0] - begin, part[1] - begin
            yield Activity(COMMUNICATION, call.op, call.group or "", *at, part[1] - part[0], shown, waited)
    for copy in rank.trace.copies:
        for part in intersection([copy.interval], [(begin, end)]):
            yield Activity(COPY, copy.name, "", part[0] - begin, part[1] - begin, part[1] - part[0])
