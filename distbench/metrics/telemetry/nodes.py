"""Reduce telemetry over nodes: the worst value of disturbances, the sum of power and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.telemetry.host import NodeValues

_Reduction = Callable[[Sequence[float]], float]
# the other columns have the maximum
_NODE_REDUCTIONS: Mapping[str, _Reduction] = {
    "host_frequency": min,
    "gpu_sm_clock": min,
    "gpu_power": math.fsum,
    "energy_per_token": math.fsum,
}
_MEANS = ("gpu_utilisation",)


def trial_by_node(trial: TrialData) -> dict[str, TrialData]:
    """Split *trial* by node: its ranks and rows. One empty name if all ranks are on the command's host."""
    if not trial.nodes:
        return {"": trial}
    rows = trial.tables.get("telemetry", [])
    return {
        node: replace(
            trial,
            samples={
                name: [of[rank] for rank in ranks if rank < len(of)] for name, of in trial.samples.items()
            },
            tables={"telemetry": [row for row in rows if row.get("node") == node]},
        )
        for node, ranks in trial.nodes.items()
    }


def with_node_name(node: str, text: object) -> str:
    """Return *text* with the name of the *node* that it is about."""
    return f"{node}: {text}" if node else str(text)


def reduce_over_nodes(seen: Mapping[str, NodeValues], ranks: Mapping[str, int]) -> NodeValues:
    """Reduce the values of all nodes to one number per column; absent unless every node has one.

    Args:
        ranks: Number of ranks of each node.
    """
    columns = next(iter(seen.values()))
    return {
        name: _reduce_column(name, {node: of[name] for node, of in seen.items()}, ranks) for name in columns
    }


def _reduce_column(
    name: str, values: Mapping[str, float | NotAvailable], ranks: Mapping[str, int]
) -> float | NotAvailable:
    missing = {node: str(value) for node, value in values.items() if isinstance(value, NotAvailable)}
    if missing:
        alike = len(missing) == len(values) and len(set(missing.values())) == 1
        node, reason = next(iter(missing.items()))
        return NotAvailable(reason if alike else with_node_name(node, reason))
    numbers = {node: value for node, value in values.items() if not isinstance(value, NotAvailable)}
    if name in _MEANS:
        # one GPU per rank
        return math.fsum(numbers[node] * ranks[node] for node in numbers) / sum(
            ranks[node] for node in numbers
        )
    return _NODE_REDUCTIONS.get(name, max)(list(numbers.values()))
