from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.columns import Column
from distbench.metrics.base import Metric, PassContext, Values


@dataclass(frozen=True)
class Heartbeat(Metric):
    """Counts the steps that it was told of."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("beats", "beats", "higher", "sum", "Steps seen by all ranks together."),
    )

    def start(self, context: PassContext) -> Any:
        return []

    def after_step(self, context: PassContext, state: Any) -> None:
        state.append(1)

    def values(self, context: PassContext, state: Any) -> Values:
        return {"beats": float(len(state))}
