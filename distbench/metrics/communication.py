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
        if state.steps:
            session.tables["collectives"] = [
                {"op": op, "group_size": size, "dtype": dtype, "calls": row.calls, "bytes": row.bytes}
                for (op, size, dtype), row in sorted(state.steps[-1].items())
            ]
        # a group of one rank moves nothing
        moving = [[row for (_, size, _), row in step.items() if size > 1] for step in state.steps]
        return {
            "comm_calls": [float(sum(row.calls for row in rows)) for rows in moving],
            "comm_bytes": [float(sum(row.bytes for row in rows)) for rows in moving],
        }
