from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distbench.data.base import BatchFunction, DataShape, DataSource

IGNORED = -100
"""What torch's cross-entropy leaves out."""


@dataclass(frozen=True)
class Headless(DataSource):
    """Rows drawn from the seed, the first quarter of which has no labels, as a prompt has none."""

    unequal: bool = False
    """Whether rows have prompts of different lengths, up to all of a row but its last label."""

    def problem(self, shape: DataShape) -> str | None:
        return None

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        def row(step: int, number: int) -> np.ndarray:
            return np.random.default_rng([seed, step, number]).integers(
                shape.classes, size=shape.sample_length + 1
            )

        def batches(step: int, rows: range) -> dict[str, np.ndarray]:
            drawn = np.stack([row(step, number) for number in rows])
            labels = drawn[:, 1:].copy()
            for labels_of_row, number in zip(labels, rows, strict=True):
                labels_of_row[: self._prompt(step, number, shape.sample_length)] = IGNORED
            return {"input_ids": drawn[:, :-1].copy(), "labels": labels}

        return batches

    def _prompt(self, step: int, number: int, length: int) -> int:
        if not self.unequal:
            return length // 4
        return int(np.random.default_rng([step, number]).integers(length))
