from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from distbench.core.columns import Column
from distbench.metrics.base import Metric, TrialData


@dataclass(frozen=True)
class Band(Metric):
    """Every trial is disturbed."""

    columns: ClassVar[tuple[Column, ...]] = (Column("drums", "", None, "max", "None were counted."),)

    def degraded_reason(self, trial: TrialData) -> str:
        return "a marching band passed"
