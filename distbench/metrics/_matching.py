"""Which interval of the backend belongs to which collective that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.metrics._trace import Event
from distbench.metrics._traffic import Call

# what a backend may run when an operation is asked for: gloo has no reduce-scatter of its own
_RUN_AS = {
    "reduce_scatter": ("reduce_scatter", "all_reduce"),
    "all_to_all": ("all_to_all", "send_recv"),
    "send": ("send", "send_recv"),
    "recv": ("recv", "recvAnySource", "send_recv"),
}


@dataclass(frozen=True)
class Done:
    """A collective as asked for, and the backend running it."""

    call: Call
    event: Event


def match(calls: Sequence[Call], issues: Sequence[Event], ranges: Sequence[Event]) -> list[Done] | None:
    """Return when each of *calls* ran, in their order; None if the trace does not hold just these.

    All are in the order of one step. The host asks in one order and the backend begins in nearly
    the same (gloo has two threads a group), so each call gets the first interval left that can be
    its own: not begun before it was asked for, of its operation, and of its size if that is told.
    """
    if len(calls) != len(issues) or len(calls) != len(ranges):
        return None
    left, found = list(ranges), []
    for call, issue in zip(calls, issues, strict=True):
        event = _first(call, issue, left)
        if event is None:
            return None
        left.remove(event)
        found.append(Done(call, event))
    return found


def _first(call: Call, issue: Event, ranges: Sequence[Event]) -> Event | None:
    names = _RUN_AS.get(call.op, (call.op,))
    return next(
        (
            event
            for event in ranges
            if event.name in names
            and (event.begin if event.launched is None else event.launched) >= issue.begin
            and event.elements in (None, call.elements)
        ),
        None,
    )
