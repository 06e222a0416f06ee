"""Offline page of the traces of a job: losses, parts of the steps, a timeline, and all tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.time_losses import TimeLoss
from distbench.analysis.traces.timeline import with_collectives
from distbench.core.units import format_duration, format_percent
from distbench.report import html
from distbench.report.html import Chapter
from distbench.report.trace_fields import largest_rows
from distbench.report.trace_overview import largest_losses, loss_sentence, step_sentence
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.tables.table import Table
from distbench.views.charts.figures import Bar, Chart, make_figure, stacked_bars
from distbench.views.charts.palette import COMMUNICATION as COMMUNICATION_COLORS
from distbench.views.charts.palette import COPIES, STEP_PARTS
from distbench.views.charts.timeline import TimelineCase, timeline_figure, timeline_height

_MOST_STEPS = 60
_MOST_RANKS = 4
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


def _loss_text(loss: TimeLoss, job: JobTrace) -> str:
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
    steps = [with_collectives(rank.middle_step, rank.collectives) for rank in ranks]
    case = TimelineCase("", "step in the middle of the trace of each rank", steps)
    left_out = (
        f"The first {_MOST_RANKS} of {len(job.ranks)} ranks are shown." if len(job.ranks) > len(ranks) else ""
    )
    return Chart(
        "trace-timeline-lanes",
        "Timeline",
        "What each rank did in the step in the middle of its trace: computation, communication by "
        "collective, copies; a lane is blank if nothing ran. Each rank begins at 0, whenever it began. "
        "Drag to zoom, double-click to return.",
        timeline_figure([case], [0]),
        height=timeline_height([case]),
        left_out=left_out,
    )
