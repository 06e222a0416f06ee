"""``ep``: expert parallelism, the experts of a model spread over ranks, to which tokens are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core import meshes, registry
from distbench.core.bounds import Count
from distbench.core.case import BYTES, Case
from distbench.core.machine import Machine
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies._offers import not_offered, reduced_otherwise
from distbench.strategies._undeclared import undeclared
from distbench.strategies.base import TORCH_SHARDS, Setting, Strategy
from distbench.strategies.description import (
    SHARDING,
    SPLITS_MODEL,
    Card,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)
from distbench.strategies.engine import Engine
from distbench.strategies.ep.card import CARD
from distbench.workloads.base import Workload
from distbench.workloads.mixture import Mixture

_COUNT = 8
"""Bytes of the number of tokens of an expert."""


@dataclass(frozen=True)
class ExpertParallel(Strategy):
    """Expert parallelism: tokens are sent to the ranks of their experts; everything else as under DDP."""

    engine = "ExpertParallelEngine"
    shard_format = TORCH_SHARDS
    early = ("distbench.strategies.ep.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = points(SHARDING, "mesh", "experts_on_a_rank")

    mesh: dict[Literal["ep"], Count] | Literal["auto"] = field(default_factory=dict)
    """{ep: 2}: distribute the experts over pairs of neighbouring ranks, with a replica in each pair. Empty:
    over all ranks. auto: a case for every size that fits the world size and the number of experts."""

    @property
    def label(self) -> str:
        return f"ep{self.asked['ep']}" if self.asked else "ep"

    @property
    def simplicity(self) -> int:
        # it changes what layers do, and how fast it is depends on the router
        return SPLITS_MODEL + 13

    @property
    def card(self) -> Card:
        return CARD

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def dimensions(self, ranks: int) -> dict[str, int]:
        sharing = self.asked.get("ep", ranks)
        # where they don't fit, problem says so
        return {"dp_replicate": max(1, ranks // sharing), "ep": sharing}

    @property
    def asked(self) -> dict[str, int]:
        """``mesh`` for those who ask by any name; of all meshes (``auto``) nothing."""
        return meshes.asked_by(self.mesh)

    def meshes(self, ranks: int) -> list[Strategy] | None:
        if self.mesh != "auto":
            return None
        every: list[Any] = meshes.sharing(ranks, "ep")
        return [replace(self, mesh=mesh) for mesh in every]

    def near_meshes(self, case: Case) -> list[dict[str, int]] | None:
        rest = "dp_replicate"
        return meshes.instead(self.asked, case.world_size, rest, (rest, "ep"))

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = mixture_of(case)
        ranks = self.dimensions(case.world_size)["ep"]
        if model is None:
            return unmixed(case)
        if reason := meshes.problem(self.asked, case.world_size, "dp_replicate"):
            return reason
        if reason := model.problem(ranks):
            return f"expert parallelism: {reason}"
        return (
            reduced_otherwise(case, "expert parallelism")
            or not_offered(case, "expert parallelism")
            or state_problem(case, "rows", self.label)
        )

    def expected(self, case: Case) -> dict[str, Any]:
        model, mesh = mixture_of(case), self.dimensions(case.world_size)
        own = {"experts_on_a_rank": model.experts // mesh["ep"]} if model else {}
        return {**{f"mesh.{name}": size for name, size in mesh.items()}, **own}

    def collectives(self, case: Case, parameters: int) -> dict[str, float] | None:
        every = self.collectives_by_dimension(case, parameters)
        return None if every is None else by_operation(every)

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        model = mixture_of(case)
        if model is None or case.world_size == 1:
            return None if model is None else []
        mesh, master = self.dimensions(case.world_size), BYTES[case.precision.master]
        over = " x ".join(name for name, size in mesh.items() if size > 1)
        moved = [ExpectedCollective("all_reduce", (parameters - model.parameters) * master, over)]
        if mesh["ep"] > 1:
            moved.append(_exchanged(case, model))
        if mesh["dp_replicate"] > 1:
            own = model.parameters // mesh["ep"] * master
            moved.append(ExpectedCollective("all_reduce", own, "dp_replicate", model.tensors))
        return moved

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model = mixture_of(case)
        if model is None:
            return None
        others = model.parameters - model.parameters // self.dimensions(case.world_size)["ep"]
        return zero_table(case, parameters - others, stored=case.precision.master)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ep.engine import build_ep

        return build_ep(self, setting)


def _exchanged(case: Case, model: Mixture) -> ExpectedCollective:
    """All-to-alls of a rank in a step: tokens to their experts and back, and so their gradients.

    Lepikhin et al. 2020 (GShard, arXiv:2006.16668, section 3.3). Tokens that stay on their rank are in the
    payload, as nccl-tests counts. Before tokens go, ranks tell each other how many; layers that are computed
    again send them again.
    """
    forward = 1 if case.activation_checkpointing == "none" else 2
    micro = case.batch.gradient_accumulation_steps
    samples = case.batch.global_batch_size / case.world_size
    tokens = samples * model.slots * model.width * BYTES[case.precision.compute]
    counts = micro * model.experts * _COUNT
    size = model.layers * (2 * (forward + 1) * tokens + forward * counts)
    return ExpectedCollective("all_to_all", size, "ep", model.layers * micro * (3 * forward + 2))


def mixture_of(case: Case) -> Mixture | None:
    """Which part of the model of *case* are experts, or None."""
    workload: Workload = registry.make("workloads", case.workload)
    return workload.mixture()


def unmixed(case: Case) -> str:
    """Why a workload without experts can't be trained with expert parallelism."""
    instead = "transformer with preset: moe-tiny or experts: 8"
    if not case.workload.options.get("model"):
        return f"expert parallelism: the workload {case.workload.name} has no experts; use {instead}"
    parts = "which modules are its routers and which have its experts, stacked"
    return undeclared(case, "expert parallelism", parts, "mixture()", instead)
