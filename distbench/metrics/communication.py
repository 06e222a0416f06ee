"""``communication``: which collectives a step asks for, and how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.metrics.base import Column, Metric, Pass, Session, Values


@dataclass(frozen=True)
class Communication(Metric):
    """Calls and bytes of every collective of a step, as asked for by the strategy."""

    passes: ClassVar[frozenset[Pass]] = frozenset({"count"})
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "comm_calls",
            "",
            "lower",
            "max",
            "Collectives that a rank takes part in during one step (groups of one rank not counted).",
            per_step=True,
        ),
        Column(
            "comm_bytes",
            "B",
            "lower",
            "max",
            "Payload of a rank's collectives in one step, as asked for: the full array of each, as "
            "nccl-tests counts (all-gather: what comes out; reduce-scatter: what goes in).",
            per_step=True,
        ),
    )

    def start(self, session: Session) -> Any:
        from distbench.metrics._collectives import Collectives

        return Collectives()

    def before_step(self, session: Session, state: Any) -> None:
        state.begin()

    def after_step(self, session: Session, state: Any) -> None:
        state.end()

    def values(self, session: Session, state: Any) -> Values:
        # groups of one rank move nothing
        moving = [[call for call in step if call.group_size > 1] for step in state.steps]
        session.kept["collectives"] = state.steps[-1] if state.steps else []
        return {
            "comm_calls": [float(len(calls)) for calls in moving],
            "comm_bytes": [float(sum(call.bytes for call in calls)) for calls in moving],
        }
