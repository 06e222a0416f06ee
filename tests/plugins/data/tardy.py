from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from distbench.data.base import BatchFunction, DataShape, DataSource
from distbench.data.synthetic import Synthetic


@dataclass(frozen=True)
class Tardy(DataSource):
    """Synthetic batches that take as long as a slow disk."""

    def problem(self, shape: DataShape) -> str | None:
        return Synthetic().problem(shape)

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        batches = Synthetic().open(shape, seed, batch_size)

        def late(step: int, rows: range) -> dict[str, np.ndarray]:
            time.sleep(0.3)
            return batches(step, rows)

        return late
