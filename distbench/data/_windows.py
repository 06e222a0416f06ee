"""Windows of a long row of tokens: what language-model sources share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.data.base import Batches, Shape, Split

if TYPE_CHECKING:
    import numpy as np


_KEPT = 0.9
"""Share of the tokens that is trained on where the rest is held out."""


def split_windows(tokens: np.ndarray, shape: Shape, seed: int, batch_size: int, held_out: int) -> Split:
    """Return windows of the first nine tenths of *tokens* (n,), and *held_out* evenly spread over the last.

    The tail is held out whole: windows at random places of all of it would overlap with those
    that are trained on.

    Raises:
        ValueError: a part is too short for one sample.
    """
    import numpy as np

    cut = int(len(tokens) * _KEPT)
    tail = tokens[cut:]
    if min(cut, len(tail)) <= shape.length:
        raise ValueError(
            f"{len(tokens)} tokens: their last tenth, which is held out, is too short for one sample of "
            f"{shape.length + 1}"
        )
    count = min(held_out, len(tail) - shape.length)
    places = np.linspace(0, len(tail) - shape.length - 1, count).astype(np.int64)
    rows = tail[places[:, None] + np.arange(shape.length + 1)]
    return Split(windows(tokens[:cut], shape, seed, batch_size), pair(rows.astype(np.int64)))


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
