"""Numbers with a label that are drawn: a class is a pattern, and a row its pattern under noise."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from distbench.data._rows import step_generator
from distbench.data.base import BatchFunction, DataShape

if TYPE_CHECKING:
    import numpy as np

_PATTERNS = 16
"""Patterns of which those of all classes are mixed, so that a thousand classes of large images fit."""
_ROWS = 2
# the stream of random numbers that draws the patterns
_SOURCE = 3


def cluster_batches(shape: DataShape, seed: int, source_seed: int) -> BatchFunction:
    """Batches of features or images whose row *i* depends on (seed, step, i) alone."""
    import numpy as np

    size = (
        (shape.channels, shape.sample_length, shape.sample_length)
        if shape.kind == "images"
        else (shape.sample_length,)
    )
    (name,) = shape.inputs

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        patterns, mixes = _classes(math.prod(size), shape.classes, source_seed)
        values = np.empty((len(rows), math.prod(size)), dtype=np.float32)
        labels = np.empty(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            # a generator for each row: a rank draws no more than its share of a global batch
            random = step_generator(seed, step, _ROWS, row)
            labels[place] = random.integers(shape.classes)
            random.standard_normal(dtype=np.float32, out=values[place])
        # not as a matrix product, whose rounding of a row may depend on how many rows there are
        for pattern, mix in zip(patterns, mixes[labels].T, strict=True):
            values += mix[:, None] * pattern
        return {name: values.reshape(len(rows), *size), "labels": labels}

    return batches


@functools.lru_cache(maxsize=4)
def _classes(width: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Patterns (patterns, width), and how much of each is in a class (classes, patterns)."""
    import numpy as np

    random = step_generator(seed, classes, _SOURCE)
    mixes = random.standard_normal((classes, _PATTERNS), dtype=np.float32)
    # the patterns of a class vary as much as the noise does
    return random.standard_normal((_PATTERNS, width), dtype=np.float32), mixes / math.sqrt(_PATTERNS)
