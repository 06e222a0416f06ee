"""``cp``: context parallelism, sequences split by position (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core import meshes
from distbench.core.bounds import Count
from distbench.core.case import DTYPE_BYTES, Case
from distbench.core.machine import Machine
from distbench.core.meshes import MeshShape
from distbench.strategies._context_parallel import AttentionExchange, ContextParallelism, context_of
from distbench.strategies._model_states import optimizer_problem, sharded_model_states
from distbench.strategies._offers import fused_sgd_problem, reduce_dtype_problem
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    RESHARDING,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    ExcessCause,
    ExpectedCollective,
    SettingMeaning,
    by_operation,
    strategy_settings,
)
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class ContextParallel(Strategy):
    """Context parallelism: every sequence is split by position across ranks."""

    early_imports = (
        "distbench.strategies.cp.engine",
        "distbench.strategies.torch_engine.ring",
    )
    checkpoint_format = TORCH_CHECKPOINT
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(SHARDING, "mesh", "positions_per_rank", "units", "merged_units", "placements"),
        **strategy_settings(RESHARDING, "reshard_after_forward"),
        **strategy_settings(GRANULARITY, "context_parallel"),
    }

    implementation: AttentionExchange = "ulysses"
    """ulysses: all-to-alls give attention all positions for some of the heads, so the number of devices must
    divide heads and kv_heads. ring: torch's ring attention, which passes keys and values to queries that stay
    in place; each rank has a chunk from the front of a sequence and one from the back."""
    mesh: dict[Literal["cp"], Count] | Literal["auto"] = field(default_factory=dict)
    """{cp: 2}: pairs of neighbouring ranks share each sequence, and each pair has its own samples. Empty: all
    ranks share every sequence. auto: a case for every size that fits the world size and the model."""
    sharded: bool = False
    """Shard parameters, gradients and optimizer state with FSDP2 over all ranks, including those that share a
    sequence (as torchtitan does). false: replicate the model and reduce gradients with DDP."""

    @property
    def engine_class(self) -> str:
        return "ShardedContextEngine" if self.sharded else "ContextParallelEngine"

    @property
    def label(self) -> str:
        name, copies = (f"cp{self.requested_mesh['cp']}", ["ddp"]) if self.requested_mesh else ("cp", [])
        ring = "-ring" if self.implementation == "ring" else ""
        return "+".join([f"{name}{ring}", *(["fsdp"] if self.sharded else copies)])

    @property
    def simplicity(self) -> int:
        # the simplest of them: layers stay whole, and only attention is replaced
        return (
            SIMPLICITY_OF_MODEL_PARALLELISM
            + bool(self.requested_mesh)
            + 2 * self.sharded
            + 3 * (self.implementation == "ring")
        )

    @property
    def card(self) -> Card:
        if self.sharded:
            return built_in_card("cp-sharded")
        return built_in_card("cp-ring" if self.implementation == "ring" else "cp")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(implementation="ring"), cls(sharded=True)

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        padded = ExcessCause("states", "shards are padded to the same size on every rank")
        return (padded,) if self.sharded else ()

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {**self._device_mesh(ranks).sizes}

    def data_parallel_size(self, ranks: int) -> int:
        return self._device_mesh(ranks).data_ranks

    @property
    def requested_mesh(self) -> dict[str, int]:
        """Sizes of ``mesh`` for callers that read any dimension by name; for all meshes (``auto``) empty."""
        return meshes.requested_sizes(self.mesh)

    def mesh_variants(self, ranks: int) -> list[Strategy] | None:
        if self.mesh != "auto":
            return None
        every: list[Any] = meshes.divisor_meshes(ranks, "cp")
        return [replace(self, mesh=mesh) for mesh in every]

    def nearest_meshes(self, case: Case) -> list[dict[str, int]] | None:
        rest = self._rest_dimension
        return meshes.alternatives_if_invalid(self.requested_mesh, case.world_size, rest, (rest, "cp"))

    def problem(self, case: Case, machine: Machine) -> str | None:
        ranks = case.world_size
        if reason := meshes.mesh_size_problem(self.requested_mesh, ranks, self._rest_dimension):
            return reason
        if self._device_mesh(ranks).size("cp") < 2:
            needs = "context parallelism needs at least 2 devices per sequence"
            if self.requested_mesh.get("cp") == 1:
                return f"{needs}, and mesh: {{cp: 1}} gives each one; use ddp, or leave mesh out"
            return f"{needs}, and this case has one; use ddp, or a larger world size"
        return (
            self._context_parallelism(ranks).problem(case)
            or (
                fused_sgd_problem(case) if self.sharded else reduce_dtype_problem(case, "cp", "sharded: true")
            )
            or optimizer_problem(case, "rows" if self.sharded else "whole", self.label)
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        return self._context_parallelism(case.world_size).required_settings(case)

    def traffic_by_operation(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.traffic(case, parameters))

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        ranks = case.world_size
        samples = case.batch.global_batch_size // self.data_parallel_size(ranks)
        return [
            *self._context_parallelism(ranks).traffic(case, samples),
            *self._model_state_traffic(case, parameters),
        ]

    def _model_state_traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        """Collectives of parameters and gradients, over all ranks: each has its own positions."""
        sizes, precision = self.mesh_sizes(case.world_size), case.precision
        everywhere = " x ".join(name for name, size in sizes.items() if size > 1)
        reduced = float(parameters * DTYPE_BYTES[precision.reduce])
        if not self.sharded:
            return [ExpectedCollective("all_reduce", reduced, everywhere)]
        # like FSDP2 without it (Zhao et al. 2023, arXiv 2304.11277): layers are gathered for each pass, and
        # everything outside of them stays gathered from forward to backward
        context, micro = context_of(case), case.batch.gradient_accumulation_steps
        layers = context.layers if context else 0
        gathered = 2.0 * micro * parameters * DTYPE_BYTES[precision.compute]
        return [
            ExpectedCollective("all_gather", gathered, everywhere, micro * (2 * layers + 1)),
            ExpectedCollective("reduce_scatter", micro * reduced, everywhere, micro * (layers + 1)),
        ]

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        shards = case.world_size if self.sharded else 1
        return sharded_model_states(
            case, parameters, stored=case.precision.master, shards=(shards, shards, shards)
        )

    def build(self, context: RankContext) -> Engine:
        if self.sharded:
            from distbench.strategies.cp.engine import build_sharded

            return build_sharded(self, context)
        from distbench.strategies.cp.engine import build_cp

        return build_cp(self, context)

    @property
    def _rest_dimension(self) -> str:
        """The dimension of ranks with different samples."""
        return "dp_shard" if self.sharded else "dp_replicate"

    def _device_mesh(self, ranks: int) -> MeshShape:
        return MeshShape.from_request(
            {"cp": self.requested_mesh.get("cp", ranks)}, ranks, self._rest_dimension
        )

    def _context_parallelism(self, ranks: int) -> ContextParallelism:
        return ContextParallelism(self._device_mesh(ranks).size("cp"), self.implementation)
