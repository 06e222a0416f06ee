"""Windows of a long row of tokens: what language-model sources share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.data.base import Batches, Shape

if TYPE_CHECKING:
    import numpy as np


def windows(tokens: np.ndarray, shape: Shape, seed: int, batch_size: int) -> Batches:
    """Return batches of windows at random places of *tokens* (n,), drawn from (seed, step) alone.

    The places of the whole global batch are drawn and the rows asked for are cut out, so that
    every way of sharing a batch among ranks sees the same rows.
    """
    import numpy as np

    offsets = np.arange(shape.length + 1)

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        places = generator(seed, step).integers(0, len(tokens) - shape.length, batch_size)
        chosen = places[rows.start : rows.stop, None] + offsets
        return pair(tokens[chosen].astype(np.int64))

    return batches


def generator(seed: int, step: int) -> np.random.Generator:
    """Return the random numbers of one step, independent of those of any other step or seed."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step])))


def pair(whole: np.ndarray) -> dict[str, np.ndarray]:
    """Return inputs and labels, shifted by one, of *whole* (rows, length + 1)."""
    import numpy as np

    return {
        "input_ids": np.ascontiguousarray(whole[:, :-1]),
        "labels": np.ascontiguousarray(whole[:, 1:]),
    }
