"""``ep``: expert parallelism, the experts of a model spread over ranks, to which tokens are sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core.bounds import Count
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.machine import Machine
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    CallCount,
    ExpectedCollective,
    SettingMeaning,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.strategies.requirements import (
    optimizer_problem,
    reduce_dtype_problem,
    transform_problem,
    undeclared_problem,
)
from distbench.strategies.theory.data_parallelism import REPLICATED
from distbench.strategies.theory.gradient_buckets import Gradient, ddp_reductions, ready_gradients_of_copies
from distbench.workloads.base import workload_of
from distbench.workloads.mixture import ExpertLayers

_TOKEN_COUNT_BYTES = 8
"""Bytes of the token count of an expert."""


@dataclass(frozen=True)
class ExpertParallel(MeshStrategy):
    """Expert parallelism: tokens are sent to the ranks of their experts; everything else as under DDP."""

    engine_class = "ExpertParallelEngine"
    checkpoint_format = TORCH_CHECKPOINT
    option_dimensions = ("ep",)
    rest_dimension = "dp_replicate"
    early_imports = ("distbench.strategies.ep.engine",)
    settings: ClassVar[Mapping[str, SettingMeaning]] = strategy_settings(
        SHARDING, "mesh", "experts_on_a_rank"
    )

    mesh: dict[Literal["ep"], Count] | Literal["auto"] = field(default_factory=dict)
    """{ep: 2}: distribute the experts over pairs of neighbouring ranks, with a replica in each pair. Empty:
    over all ranks. auto: a case for every size that fits the world size and the number of experts."""

    @property
    def label(self) -> str:
        return f"ep{self.requested_mesh['ep']}" if self.requested_mesh else "ep"

    @property
    def simplicity(self) -> int:
        # it changes the computation of layers, and its speed depends on the router
        return SIMPLICITY_OF_MODEL_PARALLELISM + 13

    @property
    def card(self) -> Card:
        return built_in_card("ep")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def known_sizes(self, ranks: int) -> dict[str, int]:
        return {"ep": ranks} | self.requested_mesh

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = workload_of(case).expert_layers()
        ranks = self.mesh_sizes(case.world_size)["ep"]
        if model is None:
            return undeclared_experts(case)
        if reason := self.mesh_size_problem(case.world_size):
            return reason
        if reason := model.problem(ranks):
            return f"expert parallelism: {reason}"
        return (
            reduce_dtype_problem(case, "expert parallelism")
            or transform_problem(case, "expert parallelism")
            or optimizer_problem(case, "rows", self.label)
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        model, mesh = workload_of(case).expert_layers(), self.mesh_sizes(case.world_size)
        own = {"experts_on_a_rank": model.experts // mesh["ep"]} if model else {}
        return {**self.mesh_settings(case.world_size), **own}

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        model = workload_of(case).expert_layers()
        if model is None or case.world_size == 1:
            return None if model is None else []
        mesh, over = self.mesh_sizes(case.world_size), self.device_mesh(case.world_size).dimensions
        others, own = parameters - model.parameters, model.parameters // mesh["ep"]
        return [
            *REPLICATED.traffic(
                case,
                others,
                replicas=case.world_size,
                dimension=over,
                reductions=_replicated_reductions(case, model),
            ),
            *([_token_traffic(case, model)] if mesh["ep"] > 1 else []),
            *REPLICATED.traffic(
                case,
                own,
                replicas=mesh["dp_replicate"],
                reductions=CallCount(model.tensors, synchronizations=0),
            ),
        ]

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model = workload_of(case).expert_layers()
        if model is None:
            return None
        others = model.parameters - model.parameters // self.mesh_sizes(case.world_size)["ep"]
        return REPLICATED.model_states(case, parameters - others)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ep.engine import build_ep

        return build_ep(self, context)


def _replicated_reductions(case: Case, model: ExpertLayers) -> CallCount:
    """All-reduces of DDP's buckets, which have everything but experts."""
    count = ddp_reductions(case, _replicated_gradients(case, model))
    # between several buckets are exchanges of tokens, which may follow one without a product in between
    return count if count.calls == 1 else replace(count, synchronizations=None)


def _replicated_gradients(case: Case, model: ExpertLayers) -> list[Gradient] | None:
    """Gradients of everything but experts, as they become ready; None: unknown."""
    shapes = workload_of(case).tensor_shapes()
    if shapes is None:
        return None
    # the stacked matrices of all experts, unless the workload has other tensors of that kind
    stacked = [shape for shape in shapes if len(shape) == 3 and shape[0] == model.experts]
    if (len(stacked), sum(map(math.prod, stacked))) != (model.tensors, model.parameters):
        return None
    gradients = ready_gradients_of_copies(case)
    return None if gradients is None else [each for each in gradients if each.shape not in stacked]


def _token_traffic(case: Case, model: ExpertLayers) -> ExpectedCollective:
    """All-to-alls of a rank in a step: tokens to their experts and back, and likewise their gradients.

    Lepikhin et al. 2020 (GShard, arXiv:2006.16668, section 3.3). Tokens that stay on their rank are part of
    the payload, as nccl-tests counts. Before the tokens, ranks exchange token counts; recomputed layers send
    the tokens again.
    """
    forward = 1 if case.activation_checkpointing == "none" else 2
    micro = case.batch.gradient_accumulation_steps
    samples = case.batch.global_batch_size / case.world_size
    tokens = samples * model.routed_tokens * model.hidden_size * DTYPE_BYTES[case.precision.compute]
    counts = micro * model.experts * _TOKEN_COUNT_BYTES
    size = model.layers * (2 * (forward + 1) * tokens + forward * counts)
    times = model.layers * micro
    # tokens follow their counts; in a recomputed layer the gradients of the results follow the results
    return ExpectedCollective("all_to_all", size, "ep", times * (3 * forward + 2), times * (3 + forward))


def undeclared_experts(case: Case) -> str:
    """Reason why a workload without experts can't be trained with expert parallelism."""
    instead = "transformer with preset: moe-tiny or experts: 8"
    if not case.workload.options.get("model"):
        return f"expert parallelism: the workload {case.workload.name} has no experts; use {instead}"
    parts = "which modules are routers and which contain the stacked experts"
    return undeclared_problem(case, "expert parallelism", parts, "expert_layers()", instead)
