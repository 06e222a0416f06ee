"""Communication in the profiled steps of one rank, inside nodes and between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distbench.metrics.base import NotAvailable, PassContext, Values
from distbench.metrics.communication.traffic import (
    LINK_SCOPES,
    SCALAR_BYTES,
    CollectiveCall,
    LinkScope,
    bus_factor,
    scope_problem,
)
from distbench.traces.intervals import TimeInterval, TimeIntervals, difference, length, union

_UNMATCHED = "the times of individual collectives are unknown"


@dataclass(frozen=True)
class Transfer:
    """A collective of several ranks with the time in which it moved bytes: no rank was waiting any more."""

    call: CollectiveCall
    interval: TimeInterval
    """Whole transfer, which may end after the step that it began in."""
    in_step: TimeInterval
    """Its part inside the step, like the times of a step: a part must not exceed its whole."""


StepTransfers = Sequence[Transfer]


def link_values(
    context: PassContext, steps: Sequence[StepTransfers | None], compute: TimeIntervals
) -> Values:
    """Time, exposed time and bus bandwidth of the transfers of each step, by scope.

    Args:
        context: Has the nodes of the ranks.
        steps: Transfers of each step; None: not known.
        compute: Intervals in which the rank computed.
    """
    values: Values = {}
    for where in LINK_SCOPES:
        numbers = {
            f"comm_{where}_s": lambda step, where=where: length(_transfer_intervals(step, where)),
            f"comm_{where}_exposed_s": lambda step, where=where: length(_exposed(step, where, compute)),
            f"comm_{where}_busbw": lambda step, where=where: busbw(step, where),
        }
        reason = scope_problem(where, context.nodes)
        values |= {name: reason or _per_step(steps, number) for name, number in numbers.items()}
    return values


def _per_step(
    steps: Sequence[StepTransfers | None], number: Callable[[StepTransfers], float | None]
) -> list[float | None] | NotAvailable:
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return NotAvailable(_UNMATCHED)
    # a step of local SGD in which nothing moves has no bandwidth, on any rank
    found: list[float | None] = [each for step in known if (each := number(step)) is not None]
    if known and not found:
        return NotAvailable(
            f"no collective of more than {SCALAR_BYTES} bytes for which nccl-tests has a factor"
        )
    return found


def _transfer_intervals(step: StepTransfers, where: LinkScope) -> list[TimeInterval]:
    return union(each.in_step for each in step if each.call.scope == where)


def _exposed(step: StepTransfers, where: LinkScope, compute: TimeIntervals) -> list[TimeInterval]:
    # if both run at once, the link between nodes is what the rank waits for
    hidden = [*compute, *_transfer_intervals(step, "between")] if where == "inside" else compute
    return difference(_transfer_intervals(step, where), union(hidden))


def busbw(step: StepTransfers, where: LinkScope) -> float | None:
    """Bytes per second: payloads times nccl-tests' factors, over the time in which these transfers ran."""
    payload, ran = [], []
    for each in step:
        factor = bus_factor(each.call.op, each.call.group_size)
        if each.call.scope == where and factor and each.call.bytes > SCALAR_BYTES:
            payload.append(each.call.bytes * factor)
            ran.append(each.interval)
    seconds = length(union(ran))
    return math.fsum(payload) / seconds if seconds > 0 else None
