"""``ep``: expert parallelism, the experts of a model spread over ranks, to which tokens are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core import meshes, registry
from distbench.core.bounds import Count
from distbench.core.case import DTYPE_BYTES, Case
from distbench.core.machine import Machine
from distbench.strategies._missing_plan import undeclared_problem
from distbench.strategies._model_states import optimizer_problem, sharded_model_states
from distbench.strategies._offers import reduce_dtype_problem, transform_problem
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.description import (
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    Card,
    ExpectedCollective,
    SettingMeaning,
    by_operation,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.ep.card import CARD
from distbench.workloads.base import Workload
from distbench.workloads.mixture import ExpertLayers

_TOKEN_COUNT_BYTES = 8
"""Bytes of the token count of an expert."""


@dataclass(frozen=True)
class ExpertParallel(Strategy):
    """Expert parallelism: tokens are sent to the ranks of their experts; everything else as under DDP."""

    engine_class = "ExpertParallelEngine"
    checkpoint_format = TORCH_CHECKPOINT
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
        return CARD

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        sharing = self.requested_mesh.get("ep", ranks)
        # if they don't fit, problem gives the reason
        return {"dp_replicate": max(1, ranks // sharing), "ep": sharing}

    @property
    def requested_mesh(self) -> dict[str, int]:
        """Sizes of ``mesh`` for callers that read any dimension by name; for all meshes (``auto``) empty."""
        return meshes.requested_sizes(self.mesh)

    def mesh_variants(self, ranks: int) -> list[Strategy] | None:
        if self.mesh != "auto":
            return None
        every: list[Any] = meshes.divisor_meshes(ranks, "ep")
        return [replace(self, mesh=mesh) for mesh in every]

    def nearest_meshes(self, case: Case) -> list[dict[str, int]] | None:
        rest = "dp_replicate"
        return meshes.alternatives_if_invalid(self.requested_mesh, case.world_size, rest, (rest, "ep"))

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = mixture_of(case)
        ranks = self.mesh_sizes(case.world_size)["ep"]
        if model is None:
            return undeclared_experts(case)
        if reason := meshes.mesh_size_problem(self.requested_mesh, case.world_size, "dp_replicate"):
            return reason
        if reason := model.problem(ranks):
            return f"expert parallelism: {reason}"
        return (
            reduce_dtype_problem(case, "expert parallelism")
            or transform_problem(case, "expert parallelism")
            or optimizer_problem(case, "rows", self.label)
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        model, mesh = mixture_of(case), self.mesh_sizes(case.world_size)
        own = {"experts_on_a_rank": model.experts // mesh["ep"]} if model else {}
        return {**{f"mesh.{name}": size for name, size in mesh.items()}, **own}

    def traffic_by_operation(self, case: Case, parameters: int) -> dict[str, float] | None:
        every = self.traffic(case, parameters)
        return None if every is None else by_operation(every)

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        model = mixture_of(case)
        if model is None or case.world_size == 1:
            return None if model is None else []
        mesh, master = self.mesh_sizes(case.world_size), DTYPE_BYTES[case.precision.master]
        over = " x ".join(name for name, size in mesh.items() if size > 1)
        moved = [ExpectedCollective("all_reduce", (parameters - model.parameters) * master, over)]
        if mesh["ep"] > 1:
            moved.append(_token_traffic(case, model))
        if mesh["dp_replicate"] > 1:
            own = model.parameters // mesh["ep"] * master
            moved.append(ExpectedCollective("all_reduce", own, "dp_replicate", model.tensors))
        return moved

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model = mixture_of(case)
        if model is None:
            return None
        others = model.parameters - model.parameters // self.mesh_sizes(case.world_size)["ep"]
        return sharded_model_states(case, parameters - others, stored=case.precision.master)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ep.engine import build_ep

        return build_ep(self, context)


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
    return ExpectedCollective("all_to_all", size, "ep", model.layers * micro * (3 * forward + 2))


def mixture_of(case: Case) -> ExpertLayers | None:
    """The experts in the model of *case* as its workload declares them, or None."""
    workload: Workload = registry.create_plugin("workloads", case.workload)
    return workload.expert_layers()


def undeclared_experts(case: Case) -> str:
    """Reason why a workload without experts can't be trained with expert parallelism."""
    instead = "transformer with preset: moe-tiny or experts: 8"
    if not case.workload.options.get("model"):
        return f"expert parallelism: the workload {case.workload.name} has no experts; use {instead}"
    parts = "which modules are routers and which contain the stacked experts"
    return undeclared_problem(case, "expert parallelism", parts, "expert_layers()", instead)
