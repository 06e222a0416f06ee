"""Parts of profiled steps, and the timeline of one step of a few ranks (a record's table ``timeline``)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.record_cache import cached_by_record
from distbench.core.grouping import group_by
from distbench.core.serialization import finite_number, is_finite_number
from distbench.record import Record
from distbench.traces.intervals import difference, union

STEP, COMPUTE, COMMUNICATION, COPY = "step", "compute", "communication", "copy"
ACTIVITY_KINDS = (COMPUTE, COMMUNICATION, COPY)
"""Kinds of activities of a rank in a step."""
_STEP_PARTS = ("data", "forward", "backward", "optimizer", "exposed_comm", "other")
"""Parts of a step, as the profiler divides it."""
_IDLE = "idle"
"""The rest of it, which older records count to those parts."""
_SECONDS = ("begin_s", "end_s", "busy_s")


def step_shares(row: CaseSummary) -> dict[str, float]:
    """Share of each part in a profiled step; empty if any is unknown."""
    named = (*_STEP_PARTS, _IDLE)
    parts = {part: found.value for part in named if (found := row.values.get(f"profile_{part}_s"))}
    # each is a median over trials; medians of parts need not add up to the median of the whole
    whole = sum(parts.values())
    if not parts.keys() >= {*_STEP_PARTS} or whole <= 0:
        return {}
    return {part: seconds / whole for part, seconds in parts.items()}


@dataclass(frozen=True)
class Activity:
    """An activity, with gaps of up to ``RankStep.merge_gap`` bridged; in seconds."""

    kind: str
    name: str
    """Part of the step, collective or direction of a copy."""
    group: str
    """Ranks of a collective; empty: unknown, or none."""
    begin: float
    end: float
    busy: float
    """Time in which it ran, without the bridged gaps."""
    exposed: float = 0.0
    """For communication: time that no computation hides."""
    wait: float = 0.0
    """For communication: time waiting for the slowest rank, as far as known."""


@dataclass(frozen=True)
class IdleGap:
    """Time in which a rank neither computed nor communicated nor copied."""

    begin: float
    end: float
    previous: str
    """Previous activity; empty: start of the step."""
    following: str
    """Next activity; empty: end of the step."""

    @property
    def seconds(self) -> float:
        """Length of the gap."""
        return self.end - self.begin


@dataclass(frozen=True)
class RankStep:
    """Kept step of one rank."""

    rank: int
    begin: float
    """Start in seconds after that of the first kept rank on its node."""
    end: float
    busy: float
    """Time in which anything ran."""
    merge_gap: float
    """Maximum length of gaps that are not shown as gaps."""
    trace: str
    """File in the trial's folder with the rank's full trace; empty: none was kept."""
    activities: tuple[Activity, ...]
    """Sorted by start."""

    @property
    def seconds(self) -> float:
        """Length of the step."""
        return self.end - self.begin

    @property
    def idle(self) -> float:
        """Time in which nothing ran."""
        return max(0.0, self.seconds - self.busy)

    def activities_of(self, kind: str, name: str = "") -> list[Activity]:
        """Activities of that *kind*, and of that *name* if given."""
        return [piece for piece in self.activities if piece.kind == kind and name in ("", piece.name)]

    def idle_gaps(self) -> list[IdleGap]:
        """Gaps longer than ``merge_gap``, the longest first."""
        ran = union((piece.begin, piece.end) for piece in self.activities)
        idle = difference([(self.begin, self.end)], ran)
        by_begin = sorted(self.activities, key=lambda piece: piece.begin)
        # of several that end at once, the longest is the last
        by_end = sorted(self.activities, key=lambda piece: (piece.end, -piece.begin))
        begins, ends = [piece.begin for piece in by_begin], [piece.end for piece in by_end]
        gaps = []
        for begin, end in idle:
            earlier, later = bisect_right(ends, begin), bisect_left(begins, end)
            previous = by_end[earlier - 1].name if earlier else ""
            following = by_begin[later].name if later < len(by_begin) else ""
            gaps.append(IdleGap(begin, end, previous, following))
        return sorted(gaps, key=lambda gap: -gap.seconds)

    def merged_to(self, limit: int) -> RankStep:
        """Bridge longer gaps to reach at most *limit* activities, or one for each kind and name."""
        by_name = group_by(self.activities, lambda piece: (piece.kind, piece.name, piece.group))
        bridged, pieces = self.merge_gap, self.activities
        while len(pieces) > max(limit, len(by_name)) and 0 < bridged <= self.seconds:
            bridged *= 1.25
            pieces = tuple(piece for same in by_name.values() for piece in _merge_adjacent(same, bridged))
        return replace(self, merge_gap=bridged, activities=pieces)


def _merge_adjacent(pieces: Iterable[Activity], gap: float) -> Iterator[Activity]:
    """Merge the activities of one name, sorted by start, that are no more than *gap* apart."""
    last: Activity | None = None
    for piece in pieces:
        if last is None or piece.begin - last.end > gap:
            if last:
                yield last
            last = piece
            continue
        sums = {key: getattr(last, key) + getattr(piece, key) for key in ("busy", "exposed", "wait")}
        last = replace(last, end=max(last.end, piece.end), **sums)
    if last:
        yield last


@cached_by_record
def rank_steps(record: Record) -> list[RankStep]:
    """Kept step of each rank that has one, by rank; impossible rows are left out."""
    return _read_steps(record, (STEP, *ACTIVITY_KINDS))


def bare_rank_steps(record: Record) -> list[RankStep]:
    """As ``rank_steps``, without activities, which take most of the time."""
    return _read_steps(record, (STEP,))


def _read_steps(record: Record, kinds: Collection[str]) -> list[RankStep]:
    timeline = record.tables.get("timeline", [])
    rows = [row for row in timeline if row.get("kind") in kinds and _is_valid(row)]
    found = [_rank_step(rank, of) for rank, of in group_by(rows, lambda row: int(row["rank"])).items()]
    return sorted((step for step in found if step), key=lambda step: step.rank)


def _rank_step(rank: int, rows: Sequence[Mapping[str, Any]]) -> RankStep | None:
    whole = next((row for row in rows if row["kind"] == STEP), None)
    if whole is None or whole["end_s"] <= whole["begin_s"]:
        return None
    pieces = [_activity(row) for row in rows if row["kind"] in ACTIVITY_KINDS]
    return RankStep(
        rank,
        whole["begin_s"],
        whole["end_s"],
        whole["busy_s"],
        max(finite_number(whole.get("bridged_s")), (whole["end_s"] - whole["begin_s"]) * 1e-6),
        str(whole.get("trace") or ""),
        tuple(sorted(pieces, key=lambda piece: piece.begin)),
    )


def _activity(row: Mapping[str, Any]) -> Activity:
    return Activity(
        row["kind"],
        str(row.get("name") or ""),
        str(row.get("group") or ""),
        row["begin_s"],
        row["end_s"],
        row["busy_s"],
        finite_number(row.get("exposed_s")),
        finite_number(row.get("wait_s")),
    )


def _is_valid(row: Mapping[str, Any]) -> bool:
    """True if *row* has a rank and times: a foreign record may hold anything."""
    is_timed = row.get("rank") is not None and all(is_finite_number(row.get(key)) for key in _SECONDS)
    return is_timed and row["begin_s"] <= row["end_s"]
