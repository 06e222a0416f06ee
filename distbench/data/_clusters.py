"""Random clusters: each class is a pattern, and a sample is the pattern of its class plus noise."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from distbench.data._rows import step_generator
from distbench.data.base import BatchFunction, DataShape

if TYPE_CHECKING:
    import numpy as np

_PATTERNS = 16
"""Number of patterns that all classes are mixed from, so that a thousand classes of large images fit."""
_ROWS = 2
# the random stream that draws the patterns
_SOURCE = 3


def cluster_batches(shape: DataShape, seed: int, source_seed: int) -> BatchFunction:
    """Batches of features or images; sample *i* depends on (seed, step, i) alone."""
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
            # one generator per sample: a rank draws no more than its share of a global batch
            random = step_generator(seed, step, _ROWS, row)
            labels[place] = random.integers(shape.classes)
            random.standard_normal(dtype=np.float32, out=values[place])
        # not a matrix product: its rounding of a row may depend on the number of rows
        for pattern, mix in zip(patterns, mixes[labels].T, strict=True):
            values += mix[:, None] * pattern
        return {name: values.reshape(len(rows), *size), "labels": labels}

    return batches


@functools.lru_cache(maxsize=4)
def _classes(width: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Patterns (patterns, width) and their weights in each class (classes, patterns)."""
    import numpy as np

    random = step_generator(seed, classes, _SOURCE)
    mixes = random.standard_normal((classes, _PATTERNS), dtype=np.float32)
    # the patterns of a class vary as much as the noise does
    return random.standard_normal((_PATTERNS, width), dtype=np.float32), mixes / math.sqrt(_PATTERNS)
