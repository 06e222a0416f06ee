"""Match the collectives of several ranks: how long each transfer took, and which rank came late.

All ranks leave a collective at about the same time, so the one that spent the shortest time in it entered it
last. That needs no common clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distbench.analysis.traces.collectives import TraceCollective
from distbench.core.grouping import group_by

_LEFT_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no rank leaves before all have entered; the root of a broadcast may leave at once."""
_Key = tuple[str | None, str | None, str, int]
"""Group, name of the process group, operation, and number of the call."""


def match_ranks(of_ranks: Mapping[int, Sequence[TraceCollective]]) -> str:
    """Set ``transfer_s`` and ``late_rank`` of the collectives that two or more of the ranks recorded.

    Returns:
        Reason why none, or not all, could be matched; empty if all were.
    """
    if len(of_ranks) < 2:
        return "times of transfers and late ranks need the traces of several ranks"
    keyed = {rank: _by_key(found) for rank, found in of_ranks.items()}
    left = 0
    for key in {key for found in keyed.values() for key in found}:
        parts = {rank: found[key] for rank, found in keyed.items() if key in found}
        # ranks of groups that the trace does not name may be in different ones
        if len(parts) < 2 or key[0] is None:
            left += len(parts)
            continue
        late = min(parts, key=lambda rank: parts[rank].seconds)
        for part in parts.values():
            part.transfer_s, part.late_rank = parts[late].seconds, late
    if not left:
        return ""
    return (
        f"{left} collectives have no counterpart in the trace of another rank, so their waiting is not known"
    )


def _by_key(found: Sequence[TraceCollective]) -> dict[_Key, TraceCollective]:
    """*found* by group, operation and number in the group: as the trace numbers them, else in their order."""
    keyed: dict[_Key, TraceCollective] = {}
    together = [call for call in found if call.op in _LEFT_TOGETHER]
    for (group, name, op), calls in group_by(
        together, lambda call: (call.group, call.process_group, call.op)
    ).items():
        numbered = [call.sequence for call in calls]
        is_unique = None not in numbered and max(Counter(numbered).values()) == 1
        for place, call in enumerate(sorted(calls, key=lambda call: call.begin)):
            number = call.sequence if is_unique and call.sequence is not None else place
            keyed[group, name, op, number] = call
    return keyed
