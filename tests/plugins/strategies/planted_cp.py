from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import RankContext
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

    def build(self, context: RankContext) -> Engine:
        engine = super().build(context)
        rows = engine._sequences
        if self.bug == "local-positions":
            engine.module.module.positions = rows.positions - rows.positions[0]
        if self.bug == "mean-of-means":
            engine._loss = lambda module, batch: context.workload.loss(module, rows.local_batch(batch))
        return engine
