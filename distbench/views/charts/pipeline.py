"""Executed schedules of two pipelines: a lane for each rank, a box for each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.pipeline import BACKWARD, FORWARD, INPUT, WEIGHT, PipelinePass
from distbench.core.grouping import group_by
from distbench.views.charts import palette
from distbench.views.charts.pairs import PairCase, paired_figure

MAX_BOXES = 12_000
"""Maximum number of boxes on a page: some 40 bytes each."""
_ROW, _AROUND = 30, 110
_PASS_NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward, input",
    WEIGHT: "backward, weights",
}


@dataclass(frozen=True)
class ScheduleCase:
    """A case that may be selected."""

    case_id: str
    name: str
    passes: Sequence[PipelinePass]

    @property
    def ranks(self) -> list[int]:
        """Ranks that have a lane."""
        return sorted({each.rank for each in self.passes})


def schedule_figure(cases: Sequence[ScheduleCase], chosen: Sequence[int]) -> dict[str, Any]:
    """Data and layout of the chart; the page draws *chosen*, indices of *cases*."""
    choices = [
        PairCase(case.case_id, case.name, [*_traces(case)], [f"rank {rank}" for rank in case.ranks])
        for case in cases
    ]
    return paired_figure(choices, chosen, "ms since the start of the step", "overlay")


def schedule_height(cases: Sequence[ScheduleCase]) -> int:
    """Height in CSS pixels for two of *cases*."""
    return _AROUND + 2 * _ROW * max(3, *(len(case.ranks) for case in cases))


def _traces(case: ScheduleCase) -> Iterator[dict[str, Any]]:
    """Boxes of each kind of pass."""
    of_kinds, ranks = group_by(case.passes, lambda each: each.kind), case.ranks
    for kind, word in _PASS_NAMES.items():
        if not (boxes := of_kinds.get(kind)):
            continue
        yield {
            "type": "bar",
            "orientation": "h",
            "name": word,
            "base": [each.begin * 1e3 for each in boxes],
            "x": [(each.end - each.begin) * 1e3 for each in boxes],
            "y": [ranks.index(each.rank) for each in boxes],
            "text": [f"{each.stage}.{each.micro_batch}" for each in boxes],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "width": 0.8,
            "marker": {"color": palette.PASSES[kind], "line": {"width": 1, "color": palette.GREY}},
            "hovertemplate": f"<b>{word}</b>, stage.micro-batch %{{text}}<br>%{{base:.4g}} to %{{x:.4g}} ms"
            "<extra></extra>",
        }
