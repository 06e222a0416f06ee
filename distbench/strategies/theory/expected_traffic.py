"""Expected collectives of a trial: of its engine as it was built, and of its loss. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies.base import Strategy
from distbench.strategies.description import ExpectedCollective


def traffic_as_built(
    strategy: Strategy, case: Case, effective: Mapping[str, Any]
) -> Sequence[ExpectedCollective] | None:
    """Expected collectives for the live engine of *strategy*, whose model may be partly frozen.

    They follow from its settings, *effective*. None: the strategy has no such theory.
    """
    parameters = effective["parameters"]
    whole = strategy.traffic(case, parameters)
    trained = effective.get("trained_parameters", parameters)
    if trained == parameters or whole is None:
        return whole
    moved = effective.get("reduced_parameters", trained)
    part = strategy.traffic(case, moved)
    if strategy.operations_on_frozen is None or part is None:
        return None
    pairs = zip(whole, part, strict=True)
    # the number of calls for the trained parameters depends on the model's layers
    return [a if a.op in strategy.operations_on_frozen else replace(b, calls=None) for a, b in pairs]


def loss_count_traffic(strategy: Strategy, ranks: int) -> Sequence[ExpectedCollective]:
    """Sum over *ranks* of the label counts of losses that are a sum and a count, once per step."""
    if strategy.data_parallel_size(ranks) == 1:
        return ()
    sizes = {name: size for name, size in strategy.mesh_sizes(ranks).items() if size > 1}
    size, stages = DTYPE_BYTES["fp64"], sizes.get("pp", 1)
    if stages > 1:
        # only ranks with the last stage compute a loss
        over = [name for name in DATA_DIMENSIONS if name in sizes]
        return [ExpectedCollective("all_reduce", size / stages, name, 1 / stages) for name in over]
    # over all ranks, which are no single dimension if there are several
    return [ExpectedCollective("all_reduce", size, next(iter(sizes)) if len(sizes) == 1 else None, 1)]
