"""Which layers each stage of a pipeline has. Without torch."""

from __future__ import annotations

import functools
import itertools
from typing import Literal

from distbench.strategies._pipeline import by_count
from distbench.workloads.stages import Stages

By = Literal["count", "parameters"]


def cut(model: Stages, stages: int, by: By) -> list[range]:
    """Layers of each of *stages*, which follow each other; every stage has at least one.

    Args:
        by: ``count``: as many layers in each, those left over in the first ones. ``parameters``: so that the
            largest stage, embedding and head included, is as small as it can be.
    """
    if by == "count":
        return by_count(len(model.layers), stages)
    ends = _by_parameters(model, stages)
    return [range(start, stop) for start, stop in itertools.pairwise((0, *ends))]


def _by_parameters(model: Stages, stages: int) -> list[int]:
    count = len(model.layers)

    @functools.cache
    def best(start: int, left: int) -> tuple[int, tuple[int, ...]]:
        """Size of the largest of *left* stages from layer *start* on, and where each ends."""
        if left == 1:
            return model.parameters(range(start, count)), (count,)
        options = []
        for stop in range(start + 1, count - left + 2):
            largest, ends = best(stop, left - 1)
            options.append((max(model.parameters(range(start, stop)), largest), (stop, *ends)))
        return min(options)

    return list(best(0, stages)[1])
