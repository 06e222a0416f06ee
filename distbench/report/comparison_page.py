"""Offline page that compares a first run with each of several others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distbench.analysis.case_names import short_names
from distbench.analysis.comparison import CasePair, MetricChange
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_value
from distbench.report import html
from distbench.report.comparison import RunComparison, comparison_table
from distbench.report.html import Chapter
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.views.charts.figures import (
    CaseStyle,
    Chart,
    error_bars,
    hover,
    make_figure,
    reference_line,
    scatter,
)

_CHARTS = {
    "tokens_per_s": ("Throughput", "right of 1 is better"),
    "efficiency": ("Scaling efficiency", "right of 1 is better if the throughput is no worse"),
    "memory_peak": ("Peak memory", "left of 1 is better"),
    "comm_bytes": ("Communication a step", "left of 1 is better"),
}
_MAX_CASES = 60


def write(comparisons: Sequence[RunComparison], file: Path) -> None:
    """Write the page of comparisons with the same first run to *file*.

    Raises:
        InfrastructureError: the file can't be written.
    """
    chapters = [_chapter(each, f"-{place}" if place > 1 else "") for place, each in enumerate(comparisons, 1)]
    jobs = [_of_jobs(each, f"-{place}" if place > 1 else "") for place, each in enumerate(comparisons, 1)]
    page = html.render(
        "comparison.html",
        [*chapters, *(own for of in jobs for own in of)],
        before=comparisons[0].before,
        parts=[*zip(comparisons, chapters, jobs, strict=True)],
    )
    with infrastructure_errors(file):
        write_atomic(file, page)


def _chapter(made: RunComparison, suffix: str) -> Chapter:
    charts = [chart for column in _CHARTS if (chart := _chart(made, column, suffix))]
    title = f"Case by case: {one_line(made.after.info.run_id)} over {one_line(made.before.info.run_id)}"
    return Chapter(f"compare{suffix}", title, charts, comparison_table(made))


def _of_jobs(made: RunComparison, suffix: str) -> list[Chapter]:
    return [Chapter(f"compare-{word}{suffix}", own.title, (), own) for word, own in made.jobs.items()]


def _chart(made: RunComparison, column: str, suffix: str) -> Chart | None:
    """Ratio of each case as a mark with its interval; None if nothing changed or is known."""
    changes = [(pair, change) for pair in made.pairs if (change := pair.change(column)) and pair.after]
    if all(change.before.value == change.after.value for _, change in changes):
        return None
    changes.sort(key=lambda pair: -abs(pair[1].ratio.value - 1))
    names = short_names([pair.after.case for pair, _ in changes[:_MAX_CASES] if pair.after])
    title, direction = _CHARTS[column]
    if made.work_differences:
        direction = "different work: neither direction is better"
    cut = (
        f"The {_MAX_CASES} of {len(changes):,} cases with the largest changes are shown."
        if changes[_MAX_CASES:]
        else ""
    )
    return Chart(
        f"compare-{column}{suffix}",
        f"{title}, after over before",
        f"Each mark is a case, its shape and colour the strategy, furthest from 1 first; {direction}. "
        f"Bars are 95% intervals; if a bar crosses the grey line, there is no measurable change.",
        make_figure(
            _traces(changes[:_MAX_CASES], _style(made)), f"ratio ({direction})", rows=[*names.values()]
        ),
        left_out=cut,
    )


def _style(made: RunComparison) -> CaseStyle:
    return CaseStyle.for_cases(row for pair in made.pairs for row in (pair.before, pair.after) if row)


def _traces(shown: Sequence[tuple[CasePair, MetricChange]], style: CaseStyle) -> list[dict[str, Any]]:
    placed = [(place, pair, change) for place, (pair, change) in enumerate(shown)]
    families = group_by(placed, lambda item: item[1].after.case.strategy.name if item[1].after else "")
    marks = [_marks(of, style.marker(family)) for family, of in families.items()]
    return [reference_line([1, 1], [-0.5, len(shown) - 0.5]), *marks]


def _marks(placed: Sequence[tuple[int, CasePair, MetricChange]], look: dict[str, Any]) -> dict[str, Any]:
    """Marks of one strategy, at their positions from the top."""
    ratios = [change.ratio for *_, change in placed]
    return scatter(
        "",
        [ratio.value for ratio in ratios],
        [place for place, *_ in placed],
        hovers=[hover(pair.name, *_facts(change)) for _, pair, change in placed],
        error_x=error_bars([(ratio.low, ratio.value, ratio.high) for ratio in ratios]),
        marker={**look, "size": 9},
        showlegend=False,
    )


def _facts(change: MetricChange) -> list[str]:
    before, after = (
        format_value(side.value, change.unit, side.half_width) for side in (change.before, change.after)
    )
    return [f"{before} before", f"{after} after", f"{change.ratio.value:.3f}, {change.word}"]
