"""Small drawing of throughput against memory without scripts, for the recommended case and its rivals.

The drawing needs no loading, prints, and works in pages that may have no script; the chart of the view
``throughput`` has all numbers of devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.candidates import pareto_front
from distbench.analysis.choice import Candidate
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_bytes, format_count, parse_bytes
from distbench.views.charts.figures import CaseStyle
from distbench.views.charts.labels import Box, overlaps

WIDTH, HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 14, 46
_CHARACTER, _LINE = 6.6, 14
_MAX_LABELS, _MAX_MARKS = 14, 300
_PLACES = (
    *((1, 4, "start"), (-1, 4, "end"), (0, -13, "middle"), (0, 22, "middle")),
    *((0.5, -10, "start"), (-0.5, -10, "end"), (0.5, 18, "start"), (-0.5, 18, "end")),
)
_BESIDE, _BESIDE_RING = 10, 14


@dataclass(frozen=True)
class MarkLabel:
    """A name next to a mark."""

    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class ScatterMark:
    """A case, with positions in CSS pixels."""

    id: str
    name: str
    facts: str
    color: str
    x: float
    y: float
    low: float
    high: float
    picked: bool
    hollow: bool = False
    """True if it was measured on a noisy machine."""
    label: MarkLabel | None = None


@dataclass(frozen=True)
class LinearAxis:
    """Axis that maps values to CSS pixels."""

    low: float
    high: float
    start: float
    end: float

    def position(self, value: float) -> float:
        """Position of *value*."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, scale: float = 1.0) -> list[tuple[float, str]]:
        """Four to eight round numbers in units of *scale*, each with its position."""
        low, high = self.low / scale, self.high / scale
        rough = (high - low) / 7
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
        numbers = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return [(self.position(number * scale), f"{number:,.10g}") for number in numbers]


@dataclass(frozen=True)
class ScatterPlot:
    """The drawing: its marks, the Pareto front, and its axes."""

    caption: str
    unit: str
    marks: tuple[ScatterMark, ...]
    front: str
    """Points of a line from the case with the lowest memory to the fastest."""
    memory: list[tuple[float, str]]
    speed: list[tuple[float, str]]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def scatter_plot(run: RunAnalysis) -> ScatterPlot | None:
    """Plot of the cases of the choice; None if fewer than two have both numbers."""
    choice = run.selection
    known = [one for one in choice.provisional or choice.ranked if one.speed and one.memory]
    # the slowest cases are left out, but never the recommended one
    shown = sorted(known, key=lambda one: one is not choice.pick)[:_MAX_MARKS]
    if len(shown) < 2:
        return None
    front = pareto_front(
        [one for one in shown if not one.is_noisy],
        lambda one: one.memory or 0.0,
        lambda one: one.speed.value if one.speed else 0.0,
    )
    noisy = "; hollow: measured on a noisy machine" if any(one.is_noisy for one in shown) else ""
    memory, speed = _axes(shown)
    unit = format_bytes(max(one.memory or 0.0 for one in shown)).split()[1]
    families = {row.case.id: row.case.strategy.name for row in run.cases}
    style = CaseStyle.for_cases(run.cases)
    marks = [
        _mark(one, memory, speed, style.marker(families[one.id])["color"], one is choice.pick)
        for one in shown
    ]
    important = sorted(marks, key=lambda mark: (not mark.picked, mark.id not in {one.id for one in front}))
    return ScatterPlot(
        f"{format_count(len(shown), 'case')} on {format_count(shown[0].devices, 'device')}. Up and to the "
        "left is better. Ring: recommended; bars: 95% intervals; dashed: the cases that no other beats in "
        f"both speed and memory{noisy}.",
        unit,
        tuple(_with_labels(important)),
        _front_points(front, memory, speed),
        memory.ticks(parse_bytes(f"1 {unit}")),
        speed.ticks(),
    )


def _axes(shown: Sequence[Candidate]) -> tuple[LinearAxis, LinearAxis]:
    """Axes of memory and of speed with margins around all marks."""
    needs = [one.memory for one in shown if one.memory]
    ends = [end for one in shown if one.speed for end in (one.speed.low, one.speed.high)]
    return _padded_axis(needs, _LEFT, WIDTH - _RIGHT), _padded_axis(ends, HEIGHT - _BOTTOM, _TOP)


def _padded_axis(values: Sequence[float], start: float, end: float) -> LinearAxis:
    low, high = min(values), max(values)
    margin = 0.09 * (high - low) or 0.1 * high
    return LinearAxis(max(0.0, low - margin), high + margin, start, end)


def _mark(one: Candidate, memory: LinearAxis, speed: LinearAxis, color: str, picked: bool) -> ScatterMark:
    assert one.speed and one.memory
    facts = f"{one.speed.text()} tokens/s, {format_bytes(one.memory)}"
    y, low, high = (
        round(speed.position(value), 1) for value in (one.speed.value, one.speed.low, one.speed.high)
    )
    return ScatterMark(
        one.id,
        one.name,
        facts,
        color,
        round(memory.position(one.memory), 1),
        y,
        low,
        high,
        picked,
        hollow=one.is_noisy,
    )


def _front_points(front: Sequence[Candidate], memory: LinearAxis, speed: LinearAxis) -> str:
    points: list[tuple[float, float]] = []
    for one in front:
        assert one.speed and one.memory
        x, y = memory.position(one.memory), speed.position(one.speed.value)
        # below the memory of the next case, the previous case is the choice
        points += [(x, points[-1][1])] if points else []
        points.append((x, y))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _with_labels(marks: Sequence[ScatterMark]) -> list[ScatterMark]:
    """Add labels to the *marks* that have space for one, the first ones first."""
    taken = np.array([(mark.x - 6, mark.y - 6, mark.x + 6, mark.y + 6) for mark in marks]).reshape(-1, 4)
    labelled = []
    for place, mark in enumerate(marks):
        free = (
            [] if place >= _MAX_LABELS else [each for each in _label_boxes(mark) if _is_free(each[1], taken)]
        )
        if free:
            label, box = free[0]
            taken = np.vstack([taken, box])
            mark = ScatterMark(**{**vars(mark), "label": label})
        labelled.append(mark)
    return labelled


def _label_boxes(mark: ScatterMark) -> list[tuple[MarkLabel, Box]]:
    """Positions of the name of *mark*, the best first, with the boxes that they occupy."""
    wide = _CHARACTER * len(mark.name)
    beside = _BESIDE_RING if mark.picked else _BESIDE
    starts = {"start": 0.0, "end": -wide, "middle": -wide / 2}
    return [
        (
            MarkLabel(round(mark.x + right * beside, 1), round(mark.y + down, 1), anchor),
            (
                mark.x + right * beside + starts[anchor],
                mark.y + down - _LINE + 3,
                mark.x + right * beside + starts[anchor] + wide,
                mark.y + down + 3,
            ),
        )
        for right, down, anchor in _PLACES
    ]


def _is_free(box: Box, taken: np.ndarray) -> bool:
    inside = box[0] >= _LEFT and box[2] <= WIDTH and box[1] >= 0 and box[3] <= HEIGHT - _BOTTOM
    return inside and not overlaps(box, taken)
