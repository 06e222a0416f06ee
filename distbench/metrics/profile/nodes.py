"""Communication of the profiled steps of one rank, inside nodes and between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distbench.metrics.base import Absent, Session, Values
from distbench.metrics.communication.traffic import SCALAR, WHERE, Call, Where, bus_factor, not_there
from distbench.metrics.profile.intervals import Interval, Intervals, difference, length, union

_UNMATCHED = "the times of single collectives are not known"


@dataclass(frozen=True)
class Transfer:
    """A collective of a group of several ranks, and when it moved bytes: when nobody waited any more."""

    call: Call
    interval: Interval
    """The whole transfer, which may end after the step that it began in."""
    in_step: Interval
    """Its part inside the step, as the times of a step are: a part must not exceed its whole."""


Step = Sequence[Transfer]


def of_nodes(session: Session, steps: Sequence[Step | None], compute: Intervals) -> Values:
    """Time, exposed time and bus bandwidth of the transfers of each step, by where they moved.

    Args:
        session: Knows the nodes of the ranks.
        steps: The transfers of each step; None: they are not known.
        compute: When the rank computed.
    """
    values: Values = {}
    for where in WHERE:
        numbers = {
            f"comm_{where}_s": lambda step, where=where: length(_ran(step, where)),
            f"comm_{where}_exposed_s": lambda step, where=where: length(_exposed(step, where, compute)),
            f"comm_{where}_busbw": lambda step, where=where: busbw(step, where),
        }
        reason = not_there(where, session.nodes)
        values |= {name: reason or _of_each(steps, number) for name, number in numbers.items()}
    return values


def _of_each(
    steps: Sequence[Step | None], number: Callable[[Step], float | None]
) -> list[float | None] | Absent:
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return Absent(_UNMATCHED)
    # a step of local SGD in which nothing moves has no bandwidth, on no rank
    found: list[float | None] = [each for step in known if (each := number(step)) is not None]
    if known and not found:
        return Absent(f"no collective of more than {SCALAR} bytes that nccl-tests has a factor for")
    return found


def _ran(step: Step, where: Where) -> list[Interval]:
    return union(each.in_step for each in step if each.call.where == where)


def _exposed(step: Step, where: Where, compute: Intervals) -> list[Interval]:
    # where both run at once, it is the link between nodes that is waited for
    hidden = [*compute, *_ran(step, "between")] if where == "inside" else compute
    return difference(_ran(step, where), union(hidden))


def busbw(step: Step, where: Where) -> float | None:
    """Bytes per second: payloads times nccl-tests' factors, over the time in which these transfers ran."""
    payload, ran = [], []
    for each in step:
        factor = bus_factor(each.call.op, each.call.group_size)
        if each.call.where == where and factor and each.call.bytes > SCALAR:
            payload.append(each.call.bytes * factor)
            ran.append(each.interval)
    seconds = length(union(ran))
    return math.fsum(payload) / seconds if seconds > 0 else None
