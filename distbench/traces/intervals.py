"""Arithmetic of time intervals: sorted, disjoint ``(begin, end)`` pairs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

TimeInterval = tuple[float, float]
TimeIntervals = Sequence[TimeInterval]
_END = itemgetter(1)


def union(intervals: Iterable[TimeInterval]) -> list[TimeInterval]:
    """Union of *intervals*, sorted and disjoint; drop empty ones."""
    merged: list[TimeInterval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def intersection(first: TimeIntervals, second: TimeIntervals) -> list[TimeInterval]:
    """Intersection of two sorted and disjoint lists."""
    common, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        (begin, end), (other_begin, other_end) = first[i], second[j]
        # of all operations of a step, most lie before or after the few intervals of a layer
        if end <= other_begin:
            i = bisect_right(first, other_begin, i + 1, key=_END)
        elif other_end <= begin:
            j = bisect_right(second, begin, j + 1, key=_END)
        else:
            low, high = max(begin, other_begin), min(end, other_end)
            if low < high:
                common.append((low, high))
            if end < other_end:
                i += 1
            else:
                j += 1
    return common


def difference(first: TimeIntervals, second: TimeIntervals) -> list[TimeInterval]:
    """*first* without *second*, two sorted and disjoint lists."""
    rest, j = [], 0
    for begin, end in first:
        while j < len(second) and second[j][1] <= begin:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if begin < second[k][0]:
                rest.append((begin, second[k][0]))
            begin = max(begin, second[k][1])
            k += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def bridge_gaps(intervals: TimeIntervals, gap: float) -> list[list[TimeInterval]]:
    """Group sorted and disjoint *intervals* into runs: no gap inside a run is longer than *gap*."""
    found: list[list[TimeInterval]] = []
    for interval in intervals:
        if found and interval[0] - found[-1][-1][1] <= gap:
            found[-1].append(interval)
        else:
            found.append([interval])
    return found


def length(intervals: TimeIntervals) -> float:
    """Total length of disjoint *intervals*."""
    return math.fsum(end - begin for begin, end in intervals)
