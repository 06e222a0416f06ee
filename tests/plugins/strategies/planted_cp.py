from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import Setting
from distbench.strategies.cp import ContextParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class PlantedCp(ContextParallel):
    """Context parallelism with one mistake in it."""

    bug: Literal["none", "local-positions", "mean-of-means"] = "none"
    """Each rank counts its positions from 0; parts of a row count alike, however many labels they have."""

    @property
    def label(self) -> str:
        return f"planted-cp-{self.bug}"

    def build(self, setting: Setting) -> Engine:
        engine = super().build(setting)
        rows = engine._rows
        if self.bug == "local-positions":
            engine.module.module.positions = rows.positions - rows.positions[0]
        if self.bug == "mean-of-means":
            engine._loss = lambda module, batch: setting.workload.loss(module, rows.part_of(batch))
        return engine
