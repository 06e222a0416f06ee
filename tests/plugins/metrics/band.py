from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from distbench.core.columns import Column
from distbench.metrics.base import Metric, Trial


@dataclass(frozen=True)
class Band(Metric):
    """Every trial is disturbed."""

    columns: ClassVar[tuple[Column, ...]] = (Column("drums", "", None, "max", "None were counted."),)

    def degraded(self, trial: Trial) -> str:
        return "a marching band passed"
