"""Compare collectives of two runs: the ratio of each bus bandwidth, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.collectives import CollectiveKey, collective_results
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.units import format_bytes, format_count, format_gb_per_s
from distbench.record import Record
from distbench.tables.table import Field, Table, TableCell, TableRow

_MIN_CHANGE = 0.01
"""Smaller changes of a bandwidth are ignored, however many trials show them."""
_CAPTION = (
    "busbw of the second run over the first, with its 95% interval over trials; higher is better. +: "
    "better, !: worse, ?: spread unknown; no sign: within the noise, or less than 1%. Signs are "
    "corrected for the number of rows, so not every interval without 1 has a sign."
)
_FIELDS = (
    Field("size", "size", "Full array.", "B"),
    Field("dtype", "type", "Dtype of the elements.", type="varchar"),
    Field("before", "before, GB/s", "busbw of the first run.", "B/s", "higher", format="{:.3g}".format),
    Field("after", "after, GB/s", "busbw of the second run.", "B/s", "higher", format="{:.3g}".format),
    Field("ratio", "ratio", "Second run over the first."),
    Field("word", "", "better, worse, same or unknown.", type="varchar"),
    Field("op", "", "Operation.", type="varchar"),
    Field("group_name", "", "all, node or between.", type="varchar"),
    Field("group_size", "", "Ranks of a group.", type="bigint"),
    Field("world_size", "", "Devices.", type="bigint"),
)
_SIGNS = {"better": "+", "worse": "!", "same": "", "unknown": "?"}


@dataclass(frozen=True)
class BandwidthChange:
    """Bus bandwidth of one operation, size, dtype and group in two runs."""

    key: CollectiveKey
    before: ConfidenceInterval
    after: ConfidenceInterval
    comparison_count: int
    """Number of measurements that both runs have: words are simultaneous over all of them."""

    @property
    def ratio(self) -> ConfidenceInterval:
        """After over before."""
        return self.after.ratio(self.before)

    @property
    def word(self) -> str:
        """better or worse by more than the noise, same, or unknown: a run has a single trial."""
        log = math.log(self.ratio.value)
        if abs(log) < math.log1p(_MIN_CHANGE):
            return "same"
        if self.ratio.half_log_width is None:
            return "unknown"
        if abs(log) <= (self.ratio.simultaneous_half_log_width_of(self.comparison_count) or 0.0):
            return "same"
        return "better" if log > 0 else "worse"


def bandwidth_changes(before: Sequence[Record], after: Sequence[Record]) -> list[BandwidthChange]:
    """Changes of all measurements that both runs have, in the order of the second run."""
    known = {result.key: result.busbw for result in collective_results(before)}
    both = [result for result in collective_results(after) if result.key in known]
    return [BandwidthChange(result.key, known[result.key], result.busbw, len(both)) for result in both]


def comparison_sheet(before: Sequence[Record], after: Sequence[Record]) -> Table:
    """Table of the ratios; notes count changes, and measurements that only one run has."""
    made = bandwidth_changes(before, after)
    words = [change.word for change in made]
    counts = [f"{words.count(word)} {word}" for word in _SIGNS if word in words]
    alone = len(collective_results(before)) + len(collective_results(after)) - 2 * len(made)
    notes = [
        f"Collectives: {', '.join(counts)} of {len(made)}." if made else "No collective is in both runs."
    ]
    notes += [f"{format_count(alone, 'measurement')} in only one of the runs not shown."] if alone else []
    return Table("Collectives", _CAPTION, _FIELDS, tuple(map(_row, made)), tuple(notes))


def _row(change: BandwidthChange) -> TableRow:
    key, ratio = change.key, change.ratio
    range_ = f" ({ratio.low:.3f}–{ratio.high:.3f})" if ratio.half_log_width else ""
    return TableRow(
        {
            "size": TableCell(key.bytes, format_bytes(key.bytes)),
            "dtype": key.dtype,
            "before": TableCell(change.before.value, format_gb_per_s(change.before.value)),
            "after": TableCell(change.after.value, format_gb_per_s(change.after.value)),
            "ratio": TableCell(ratio.value, f"{ratio.value:.3f}{range_} {_SIGNS[change.word]}".rstrip()),
            "word": change.word,
            "op": key.op,
            "group_name": key.group,
            "group_size": key.group_size,
            "world_size": key.world_size,
        },
        group=f"{key.op}, {key.participants}",
    )
