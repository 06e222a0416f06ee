"""Calls of the host that enclose a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from distbench.core.grouping import group_by
from distbench.traces.trace import MODULE_PREFIX, ProfilerEvent

CallStack = tuple[ProfilerEvent, ...]
"""Calls that enclose a moment, the outermost first."""


def call_stacks(
    calls: Iterable[ProfilerEvent], moments: Sequence[tuple[int, float]]
) -> Iterator[tuple[int, CallStack]]:
    """Yield the place in *moments*, pairs of a thread and a time, and the stack of *calls* at that moment.

    Calls of one thread are nested or follow one another.
    """
    by_thread = group_by(calls, lambda call: call.thread)
    asked = group_by(enumerate(moments), lambda moment: moment[1][0])
    for thread, places in asked.items():
        begun = sorted(by_thread.get(thread, ()), key=lambda call: (call.begin, -call.end))
        stack: list[ProfilerEvent] = []
        next_call = 0
        for place, (_, moment) in sorted(places, key=lambda place: place[1][1]):
            while next_call < len(begun) and begun[next_call].begin <= moment:
                call = begun[next_call]
                next_call += 1
                while stack and stack[-1].end <= call.begin:
                    stack.pop()
                stack.append(call)
            while stack and stack[-1].end < moment:
                stack.pop()
            yield place, tuple(stack)


def call_sites(python_calls: Sequence[ProfilerEvent], calls: Sequence[ProfilerEvent]) -> dict[int, str]:
    """Identity of each of *calls* -> innermost line of the user's code in it, if stacks were recorded."""
    user_calls = [call for call in python_calls if not call.name.startswith(MODULE_PREFIX)]
    moments = [(call.thread, call.begin) for call in calls]
    return {id(calls[place]): stack[-1].name for place, stack in call_stacks(user_calls, moments) if stack}
