"""Compare two runs of different work strategy by strategy: the settings that differ, and matched cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.comparison import CasePair, unusable_reason, with_changes
from distbench.analysis.settings import flatten_facts
from distbench.analysis.statistics.intervals import NO_EARLIER_RUNS

_WORK_FIELDS = ("workload", "data", "batch")
"""Case fields that decide it: runs are of different work if all their cases differ in one of them."""
_MATCH_KEYS = ("name", "label", "strategy", "world_size")


def work_differences(
    before: Sequence[CaseSummary], after: Sequence[CaseSummary]
) -> dict[str, tuple[str, str]]:
    """Settings in which every case of one run differs from every case of the other, with their values.

    Empty if the runs have a case in common, or if none of these settings is of the model, data or batch.
    """
    if {row.case.id for row in before} & {row.case.id for row in after}:
        return {}
    old, new = _setting_values(before), _setting_values(after)
    different = {
        key: (" or ".join(old[key]), " or ".join(new[key]))
        for key in new
        if key in old and not old[key].keys() & new[key].keys()
    }
    is_different_work = any(key.partition(".")[0] in _WORK_FIELDS for key in different)
    return different if is_different_work else {}


def match_by_strategy(before: Sequence[CaseSummary], after: Sequence[CaseSummary]) -> list[CasePair]:
    """Match the cases of two runs of different work by strategy and number of devices, if unique."""
    first, second = _unique_by_key(before), _unique_by_key(after)
    here = {_match_key(row) for row in after}
    pairs = []
    for row in after:
        mate = first.get(_match_key(row)) if _match_key(row) in second else None
        why = (
            unusable_reason(mate, row)
            if mate
            else "the runs do not both have exactly one case of this strategy on this number of devices"
        )
        pairs.append(CasePair(row.case.name, mate, row, why))
    gone = [
        CasePair(row.case.name, row, None, "only in the first run")
        for row in before
        if _match_key(row) not in here
    ]
    return [_without_direction(pair) for pair in with_changes([*pairs, *gone], NO_EARLIER_RUNS)]


def _setting_values(rows: Sequence[CaseSummary]) -> dict[str, dict[str, None]]:
    """Values of each setting over all cases, in the order of the cases."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        settings = {key: part for key, part in row.case.to_json().items() if key not in _MATCH_KEYS}
        for key, value in flatten_facts(settings).items():
            values.setdefault(key.replace(".options.", "."), {})[value] = None
    return values


def _match_key(row: CaseSummary) -> tuple[str, int]:
    return row.case.label, row.case.world_size


def _unique_by_key(rows: Sequence[CaseSummary]) -> Mapping[tuple[str, int], CaseSummary]:
    counts = Counter(map(_match_key, rows))
    return {_match_key(row): row for row in rows if counts[_match_key(row)] == 1}


def _without_direction(pair: CasePair) -> CasePair:
    changes = (
        replace(change, word="other" if change.word in ("better", "worse") else change.word)
        for change in pair.changes
    )
    return replace(pair, changes=tuple(changes))
