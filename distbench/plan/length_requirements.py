"""Check that a case can train on rows that differ in length."""

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.units import join_words
from distbench.data.base import DataSource
from distbench.strategies.base import Strategy
from distbench.workloads.base import Workload

_DIVIDED = {"pp": "stages", "cp": "parts of rows", "tp": "parts of layers", "ep": "experts"}
"""Dimension of a mesh whose ranks exchange activations -> what each has."""


def variable_length_problem(case: Case, strategy: Strategy, workload: Workload) -> str | None:
    """Reason why *case* can't train on rows as its data lays them out; None if it can."""
    source: DataSource = registry.create_plugin("data", case.data)
    if source.packs_rows:
        return _packing_problem(case, strategy, workload)
    return None if source.length_multiple is None else _length_problem(case, strategy, workload)


def _packing_problem(case: Case, strategy: Strategy, workload: Workload) -> str | None:
    """Reason why *case* can't keep the documents of packed rows apart; None: none is known in advance."""
    sizes, instead = strategy.mesh_sizes(case.world_size), "use padding: max_length instead"
    used = {case.strategy.name, *(name for name, size in sizes.items() if size > 1)}
    if "pp" in used:
        return f"packing: stages pass on activations alone, and not where documents begin; {instead}"
    if "cp" in used:
        return f"packing: context parallelism attends over whole rows, and not within documents; {instead}"
    if case.precision.float8 == "tensorwise":
        return (
            "packing: float8 in recipe tensorwise has one scale for all rows, so that it can't be shown that "
            f"they stay apart; use precision.float8: rowwise, or {instead}"
        )
    if getattr(strategy, "sequence_parallel", False):
        return f"packing: with sequence_parallel ranks have parts of rows; set it to false, or {instead}"
    if problem := workload.variable_length_problem():
        return f"packing would change the training ({problem}); {instead}"
    return None


def _length_problem(case: Case, strategy: Strategy, workload: Workload) -> str | None:
    """Reason why micro-batches of *case* can't differ in length; None if they can."""
    sizes, instead = strategy.mesh_sizes(case.world_size), "use padding: max_length"
    # the engines of such a strategy expect that size on one rank, too
    divided = [
        what for name, what in _DIVIDED.items() if sizes.get(name, 1) > 1 or case.strategy.name == name
    ]
    if divided:
        return (
            "padding: longest makes micro-batches of different lengths, and ranks that have "
            f"{join_words(divided)} exchange activations of one size; {instead}"
        )
    if case.compile != "none":
        return (
            "padding: longest makes micro-batches of different lengths, for which torch.compile would "
            f"compile again in timed steps; {instead}, or compile: false"
        )
    if problem := workload.variable_length_problem():
        return f"padding: longest would change the training ({problem}); {instead}"
    return None
