"""Place labels in charts without overlaps: at the ends of lines, and next to marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distbench.core.text import shorten
from distbench.views.charts.figures import escape_label

MAX_LINE_LABELS = 16
_LINE, _NEAR = 15, 4
"""CSS pixels of a label, and between two ends that share one."""
_ROOM = 0.3
"""Share of a chart's width that labels need to the right of the lines."""
_MAX_LENGTH = 22
"""Maximum characters of a name at the end of a line."""
_CHARACTER, _MARK = 6.4, 9
"""Approximate CSS pixels."""
# plotly's word for a position, and the offset of the text's box from the mark
_PLACES = {
    "top center": (-0.5, -1.6),
    "bottom center": (-0.5, 0.6),
    "middle right": (0.0, -0.5),
    "middle left": (-1.0, -0.5),
    "top right": (0.0, -1.6),
    "bottom left": (-1.0, 0.6),
    "top left": (-1.0, -1.6),
    "bottom right": (0.0, 0.6),
}
Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge in CSS pixels."""


@dataclass(frozen=True)
class LineEnd:
    """End of a line."""

    x: float
    y: float
    name: str
    color: str


def label_line_ends(ends: Sequence[LineEnd], low: float, high: float, pixels: int) -> list[dict[str, Any]]:
    """Plotly's annotations with a name at the end of each line.

    Ends at one position share the label of the first, with the number of the others; if all are there, their
    number is the label.

    Args:
        ends: In the order in which names are preferred.
        low: Lower end of the vertical axis.
        high: Its upper end.
        pixels: Its length.
    """
    places = [(high - end.y) / (high - low) * pixels for end in ends] if high > low else []
    shared: list[tuple[float, LineEnd, int]] = []
    for place, end in sorted(zip(places, ends, strict=False), key=lambda pair: pair[0]):
        if shared and place - shared[-1][0] <= _NEAR and end.x == shared[-1][1].x:
            first, one, count = shared[-1]
            preferred = min(one, end, key=ends.index)
            shared[-1] = (first, preferred, count + 1)
        else:
            shared.append((place, end, 1))
    return [
        _label(end, f"{count} cases" if 1 < count == len(ends) else _name(end, count), lowered - place)
        for (place, end, count), lowered in zip(
            shared, _spread_out([place for place, *_ in shared[:MAX_LINE_LABELS]], pixels), strict=False
        )
    ]


def _spread_out(places: Sequence[float], pixels: int) -> list[float]:
    """Move *places*, from the top, at least a line apart, and above *pixels* if there is space."""
    lowered: list[float] = []
    for place in places:
        lowered.append(max(place, lowered[-1] + _LINE if lowered else -math.inf))
    lowest = float(pixels)
    for at in reversed(range(len(lowered))):
        lowered[at] = min(lowered[at], lowest)
        lowest = lowered[at] - _LINE
    return lowered


def _name(end: LineEnd, count: int) -> str:
    more = f" (+{count - 1})" if count > 1 else ""
    return escape_label(shorten(end.name, _MAX_LENGTH)) + more


def _label(end: LineEnd, text: str, shift: float) -> dict[str, Any]:
    return {
        "x": end.x,
        "y": end.y,
        "text": text,
        "xanchor": "left",
        "ax": 18,
        "ay": shift,
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": end.color,
        "font": {"size": 12},
    }


def range_with_label_space(low: float, high: float) -> list[float]:
    """Range of a level axis from *low* to *high* with space for labels on the right."""
    width = (high - low) or 1.0
    return [low - 0.02 * width, high + _ROOM * width]


def place_mark_labels(marks: Sequence[tuple[float, float, str]], wide: int, high: int) -> dict[int, str]:
    """Index among *marks* -> plotly's position of its label; labels that don't fit are left out.

    Args:
        marks: Position of each, as fractions of the plot from its left and upper edge, and its name; the
            first ones get the better positions.
        wide: CSS pixels of the plot.
        high: CSS pixels of the plot.
    """
    points = [(x * wide, y * high) for x, y, _ in marks]
    # compared as arrays: there are thousands of marks, and most labels of each find no space
    taken = np.array([(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in points]).reshape(-1, 4)
    found = {}
    for at, (x, y, name) in enumerate(marks):
        size = (_CHARACTER * len(name), float(_LINE))
        for word, where in _PLACES.items():
            box = _box((x * wide, y * high), size, where)
            if box[0] >= 0 and box[2] <= wide and box[1] >= 0 and box[3] <= high and not overlaps(box, taken):
                found[at] = word
                taken = np.vstack([taken, box])
                break
    return found


def _box(point: tuple[float, float], size: tuple[float, float], where: tuple[float, float]) -> Box:
    aside = _MARK + 1 if where[0] == 0 else -_MARK - 1 if where[0] == -1 else 0
    left, top = point[0] + where[0] * size[0] + aside, point[1] + where[1] * size[1]
    return left, top, left + size[0], top + size[1]


def overlaps(box: Box, taken: np.ndarray) -> bool:
    """True if *box* overlaps any of *taken* (boxes, 4)."""
    left, upper, right, lower = taken.T
    disjoint = (box[0] >= right) | (left >= box[2]) | (box[1] >= lower) | (upper >= box[3])
    return not disjoint.all()
