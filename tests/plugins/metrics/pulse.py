from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.columns import Column, TableColumn, TableSpec
from distbench.metrics.base import Metric, PassContext, Values


@dataclass(frozen=True)
class Pulse(Metric):
    """Notes each step that it sees."""

    columns: ClassVar[tuple[Column, ...]] = (
        Column("pulse_beats", "beats", "higher", "sum", "Steps that all ranks saw together."),
    )
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "beats",
            "One row a step and rank.",
            (
                TableColumn("step", "bigint", "Step, from 0 on."),
                TableColumn("volts", "double", "How strong the beat was.", "V"),
            ),
        ),
    )

    def start(self, context: PassContext) -> Any:
        return []

    def after_step(self, context: PassContext, state: Any) -> None:
        state.append({"step": len(state), "volts": 1.5})

    def values(self, context: PassContext, state: Any) -> Values:
        context.tables["beats"] = state
        return {"pulse_beats": float(len(state))}
