"""``cp``: context parallelism, sequences split by position (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core.bounds import Count
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    RESHARDING,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    CallCount,
    ExcessCause,
    ExpectedCollective,
    SettingMeaning,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.strategies.requirements import fused_sgd_problem, optimizer_problem, reduce_dtype_problem
from distbench.strategies.theory.context_parallelism import AttentionExchange, ContextParallelism
from distbench.strategies.theory.data_parallelism import FULLY_SHARDED, REPLICATED
from distbench.strategies.theory.gradient_buckets import (
    ddp_bucket_ends,
    ddp_reductions,
    ready_gradients_of_copies,
)
from distbench.strategies.theory.sharded_units import ShardedUnits, padded_parameters
from distbench.workloads.base import workload_of


@dataclass(frozen=True)
class ContextParallel(MeshStrategy):
    """Context parallelism: every sequence is split by position across ranks."""

    early_imports = (
        "distbench.strategies.cp.engine",
        "distbench.strategies.torch_engine.ring",
    )
    checkpoint_format = TORCH_CHECKPOINT
    option_dimensions = ("cp",)
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

    @property
    def rest_dimension(self) -> str:
        return "dp_shard" if self.sharded else "dp_replicate"

    def known_sizes(self, ranks: int) -> dict[str, int]:
        return {"cp": ranks} | self.requested_mesh

    def problem(self, case: Case, machine: Machine) -> str | None:
        ranks = case.world_size
        if reason := self.mesh_size_problem(ranks):
            return reason
        if self.device_mesh(ranks).size("cp") < 2:
            needs = "context parallelism needs at least 2 devices per sequence"
            if self.requested_mesh.get("cp") == 1:
                return f"{needs}, but mesh: {{cp: 1}} gives each sequence one; use ddp, or remove mesh"
            return f"{needs}, but this case has one; use ddp, or a larger world size"
        return (
            self._context_parallelism(ranks).problem(case)
            or (
                fused_sgd_problem(case) if self.sharded else reduce_dtype_problem(case, "cp", "sharded: true")
            )
            or optimizer_problem(case, "rows" if self.sharded else "whole", self.label)
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        return self._context_parallelism(case.world_size).required_settings(case)

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        ranks = case.world_size
        samples = case.batch.global_batch_size // self.data_parallel_size(ranks)
        moved = [
            *self._context_parallelism(ranks).traffic(case, samples),
            *self._model_state_traffic(case, parameters),
        ]
        if case.activation_checkpointing != "selective":
            return moved
        # products are kept, so that what is recomputed between two exchanges may have none
        return [replace(each, synchronizations=None) for each in moved]

    def _model_state_traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        """Collectives of parameters and gradients, over all ranks: each has its own positions."""
        ranks = case.world_size
        everywhere = self.device_mesh(ranks).dimensions
        if not self.sharded:
            return REPLICATED.traffic(
                case,
                parameters,
                replicas=ranks,
                dimension=everywhere,
                reductions=_ddp_reductions(case),
            )
        # like FSDP2 without it (Zhao et al. 2023, arXiv 2304.11277): layers are gathered for each pass, and
        # everything outside of them stays gathered from forward to backward
        context = workload_of(case).context_split()
        units = ShardedUnits(context.layers if context else 0, FULLY_SHARDED)
        return units.traffic(case, parameters, shards=ranks, dimension=everywhere)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        if not self.sharded:
            return REPLICATED.model_states(case, parameters)
        ranks = case.world_size
        return FULLY_SHARDED.model_states(case, padded_parameters(case, parameters, ranks), ranks)

    def build(self, context: RankContext) -> Engine:
        if self.sharded:
            from distbench.strategies.cp.engine import build_sharded

            return build_sharded(self, context)
        from distbench.strategies.cp.engine import build_cp

        return build_cp(self, context)

    def _context_parallelism(self, ranks: int) -> ContextParallelism:
        return ContextParallelism(self.device_mesh(ranks).size("cp"), self.implementation)


def _ddp_reductions(case: Case) -> CallCount:
    """All-reduces of DDP's buckets between the exchanges of attention."""
    gradients = ready_gradients_of_copies(case)
    count = ddp_reductions(case, gradients)
    if gradients is None:
        return count
    # after a norm comes the matrix that ends an attention or a feed-forward network; the gradient of the
    # output of attention is exchanged at once, after a bucket that ends there
    unclear = [
        end
        for end in ddp_bucket_ends(case, gradients)[:-1]
        if end and gradients[end].is_product and not gradients[end - 1].is_product
    ]
    return replace(count, synchronizations=None) if unclear else count
