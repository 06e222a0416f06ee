"""Split the layers of a pipeline into stages. Imports no torch."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

from distbench.strategies.theory.pipeline_parallelism import split_evenly
from distbench.workloads.stages import PipelineStages

SplitBy = Literal["count", "parameters", "time"]


def split_layers(
    model: PipelineStages, stages: int, by: SplitBy, layer_ms: Sequence[float] = ()
) -> list[range]:
    """Layers of each of *stages* consecutive stages; every stage has at least one.

    Args:
        by: ``count``: equal numbers of layers, with the remainder in the first stages. ``parameters``,
            ``time``: minimize the largest stage, including the parts of the model before and after the
            layers.
        layer_ms: Milliseconds of each layer, for ``time``.
    """
    count = len(model.layer_parameters)
    if by == "count":
        return split_evenly(count, stages)
    if by == "parameters":
        return _split_balanced(count, stages, model.parameters)
    assert len(layer_ms) == count, "of each layer"
    return _split_balanced(count, stages, lambda layers: math.fsum(layer_ms[layers.start : layers.stop]))


def ranges_from_sizes(sizes: Sequence[int]) -> list[range]:
    """Layers of consecutive stages that have *sizes* layers."""
    return [range(stop - size, stop) for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _split_balanced(count: int, stages: int, size: Callable[[range], float]) -> list[range]:
    """*count* layers in *stages* stages, such that the largest by *size* is as small as possible."""

    @functools.cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Size of the largest of *left* stages from layer *start* on, and the end of each."""
        if left == 1:
            return size(range(start, count)), (count,)
        options = []
        for stop in range(start + 1, count - left + 2):
            largest, ends = best(stop, left - 1)
            options.append((max(size(range(start, stop)), largest), (stop, *ends)))
        return min(options)

    _, ends = best(0, stages)
    return [range(start, stop) for start, stop in itertools.pairwise((0, *ends))]
