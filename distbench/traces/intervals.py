"""Arithmetic of time intervals: sorted, disjoint ``(begin, end)`` pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

TimeInterval = tuple[float, float]
TimeIntervals = Sequence[TimeInterval]


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
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            common.append((begin, end))
        if first[i][1] < second[j][1]:
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
