"""``experts``: how many tokens the router of each layer sends to each expert."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.core.grouping import group_pairs
from distbench.metrics.base import Metric, NotAvailable, PassContext, TrialData, Values

if TYPE_CHECKING:
    from torch import nn

    from distbench.workloads.mixture import ExpertLayers

_TABLE = "expert_load"


@dataclass
class _State:
    load: dict[str, list[int]] = field(default_factory=dict)
    """Router name -> tokens that it has sent to each expert."""
    dropped: dict[str, list[int]] = field(default_factory=dict)
    """Router name -> tokens that each expert had no capacity for."""
    hooks: list[Any] = field(default_factory=list)
    is_forward: bool = False
    steps: int = 0


@dataclass(frozen=True)
class ExpertLoad(Metric):
    """Tokens of each expert in one step, from the choices of the routers."""

    tables = (
        TableSpec(
            _TABLE,
            "Tokens that a rank's routers sent to each expert in one step, one row per layer and expert.",
            (
                TableColumn("router", "varchar", "Name of the router in the plain module."),
                TableColumn("expert", "bigint", "Number of the expert in its layer."),
                TableColumn("tokens", "bigint", "Tokens of the rank's samples that were sent to it."),
                TableColumn(
                    "dropped",
                    "bigint",
                    "Those of them that were dropped, because the expert had no capacity left.",
                ),
            ),
        ),
    )
    passes = frozenset({"count"})
    columns = columns_of("", None, "first")(
        expert_most="Tokens of the expert with the most, over the mean of all experts of its layer, in "
        "the layer with the largest ratio, in one step of all ranks; 1: all get the same number.",
        expert_least="The same for the expert with the fewest tokens, in the layer with the smallest ratio.",
        expert_dropped="Fraction of a step's routed tokens that were dropped, because experts had no "
        "capacity left.",
    )

    def start(self, context: PassContext) -> _State:
        mixture = context.workload.expert_layers()
        return _State() if mixture is None else _hook_routers(context, mixture)

    @contextmanager
    def around(self, context: PassContext, state: _State, span: str) -> Iterator[None]:
        state.steps += span == "data"
        # layers that are recomputed in the backward pass choose again; of several steps only one is observed
        state.is_forward = span == "forward" and state.steps <= 1
        try:
            yield
        finally:
            state.is_forward = False

    def values(self, context: PassContext, state: _State) -> Values:
        for hook in state.hooks:
            hook.remove()
        context.tables[_TABLE] = [
            {"router": name, "expert": expert, "tokens": tokens, "dropped": state.dropped[name][expert]}
            for name, load in state.load.items()
            for expert, tokens in enumerate(load)
        ]
        return {}

    def summary(self, trial: TrialData) -> Mapping[str, float | NotAvailable]:
        rows = trial.tables.get(_TABLE)
        if not rows:
            raise NotAvailable("no router was found: the workload has no experts, or its layers are compiled")
        layers = group_pairs((row["router"], row) for row in rows)
        shares = [share for same in layers.values() for share in _relative_loads(same)]
        every, dropped = (math.fsum(row[column] for row in rows) for column in ("tokens", "dropped"))
        return {
            "expert_most": max(shares),
            "expert_least": min(shares),
            "expert_dropped": dropped / every,
        }


def _relative_loads(rows: list[dict[str, Any]]) -> list[float]:
    """Tokens of each expert of one layer, summed over the *rows* of all ranks, relative to their mean."""
    tokens = [
        math.fsum(same) for same in group_pairs((row["expert"], row["tokens"]) for row in rows).values()
    ]
    mean = math.fsum(tokens) / len(tokens)
    return [each / mean for each in tokens]


def _hook_routers(context: PassContext, mixture: ExpertLayers) -> _State:
    """Observe the routers of the live module inside any wrappers. A collective call."""
    state, first = _State(), mixture.routers.partition("*")[0]

    def found(module: nn.Module) -> list[tuple[str, nn.Module]]:
        return [
            named for named in module.named_modules() if fnmatchcase(_plain(named[0]), f"*{mixture.routers}")
        ]

    try:
        routers = context.engine.evaluate(found)
    except NotImplementedError:
        return state
    for name, router in routers:
        plain = _plain(name)
        _hook_router(state, plain[plain.rindex(first) :], router, mixture)
    return state


def _plain(name: str) -> str:
    from distbench.workloads.weights import plain_name

    return plain_name(name)


def _hook_router(state: _State, name: str, router: nn.Module, mixture: ExpertLayers) -> None:
    """Add the choices of *router* in later forward passes to *state*."""
    state.load[name], state.dropped[name] = [0] * mixture.experts, [0] * mixture.experts

    def look(_router: nn.Module, _inputs: Any, output: Any) -> None:
        if not state.is_forward:
            return
        for sample in output[1].flatten(1):
            for expert, tokens in enumerate(sample.bincount(minlength=mixture.experts).tolist()):
                state.load[name][expert] += tokens
                state.dropped[name][expert] += max(0, tokens - (mixture.capacity or tokens))

    state.hooks.append(router.register_forward_hook(look))
