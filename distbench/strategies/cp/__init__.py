"""``cp``: context parallelism, sequences split by position (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core import meshes
from distbench.core.bounds import Count
from distbench.core.case import BYTES, Case
from distbench.core.machine import Machine
from distbench.core.meshes import Mesh
from distbench.strategies._context_parallel import ContextParallelism, Implementation, context_of
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies._offers import reduced_otherwise, unfused
from distbench.strategies.base import TORCH_SHARDS, Setting, Strategy
from distbench.strategies.cp.card import PLAIN, RING, SHARDED
from distbench.strategies.description import (
    KEEPING,
    PORTIONS,
    SHARDING,
    SPLITS_MODEL,
    Card,
    Deviation,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class ContextParallel(Strategy):
    """Context parallelism: every sequence is split by position across ranks."""

    early = (
        "distbench.strategies.cp.engine",
        "distbench.strategies.cp.sharded",
        "distbench.strategies.torch_engine.ring",
    )
    shard_format = TORCH_SHARDS
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "mesh", "positions_per_rank", "units", "merged_units", "placements"),
        **points(KEEPING, "reshard_after_forward"),
        **points(PORTIONS, "context_parallel"),
    }

    implementation: Implementation = "ulysses"
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
    def engine(self) -> str:
        return "ShardedContextEngine" if self.sharded else "ContextParallelEngine"

    @property
    def label(self) -> str:
        name, copies = (f"cp{self.asked['cp']}", ["ddp"]) if self.asked else ("cp", [])
        ring = "-ring" if self.implementation == "ring" else ""
        return "+".join([f"{name}{ring}", *(["fsdp"] if self.sharded else copies)])

    @property
    def simplicity(self) -> int:
        # the simplest of them: layers stay whole, attention alone is another
        return SPLITS_MODEL + bool(self.asked) + 2 * self.sharded + 3 * (self.implementation == "ring")

    @property
    def card(self) -> Card:
        if self.sharded:
            return SHARDED
        return RING if self.implementation == "ring" else PLAIN

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(implementation="ring"), cls(sharded=True)

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        padded = Deviation("states", "shards are padded to the same size on every rank")
        return (padded,) if self.sharded else ()

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {**self._over(ranks).sizes}

    def data_ranks(self, ranks: int) -> int:
        return self._over(ranks).data_ranks

    @property
    def asked(self) -> dict[str, int]:
        """``mesh`` for those who ask by any name; of all meshes (``auto``) nothing."""
        return meshes.asked_by(self.mesh)

    def meshes(self, ranks: int) -> list[Strategy] | None:
        if self.mesh != "auto":
            return None
        every: list[Any] = meshes.sharing(ranks, "cp")
        return [replace(self, mesh=mesh) for mesh in every]

    def near_meshes(self, case: Case) -> list[dict[str, int]] | None:
        rest = self._of_data
        return meshes.instead(self.asked, case.world_size, rest, (rest, "cp"))

    def problem(self, case: Case, machine: Machine) -> str | None:
        ranks = case.world_size
        if reason := meshes.problem(self.asked, ranks, self._of_data):
            return reason
        if self._over(ranks).size("cp") < 2:
            needs = "context parallelism needs at least 2 devices per sequence"
            if self.asked.get("cp") == 1:
                return f"{needs}, and mesh: {{cp: 1}} gives each one; use ddp, or leave mesh out"
            return f"{needs}, and this case has one; use ddp, or a larger world size"
        return (
            self._cut(ranks).problem(case)
            or (unfused(case) if self.sharded else reduced_otherwise(case, "cp", "sharded: true"))
            or state_problem(case, "rows" if self.sharded else "whole", self.label)
        )

    def expected(self, case: Case) -> dict[str, Any]:
        return self._cut(case.world_size).expected(case)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.collectives_by_dimension(case, parameters))

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        ranks = case.world_size
        samples = case.batch.global_batch_size // self.data_ranks(ranks)
        return [*self._cut(ranks).collectives(case, samples), *self._of_states(case, parameters)]

    def _of_states(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        """Collectives of parameters and gradients, which are over all ranks: each has its own positions."""
        sizes, precision = self.dimensions(case.world_size), case.precision
        everywhere = " x ".join(name for name, size in sizes.items() if size > 1)
        reduced = float(parameters * BYTES[precision.reduce])
        if not self.sharded:
            return [ExpectedCollective("all_reduce", reduced, everywhere)]
        # as FSDP2 does it alone (Zhao et al. 2023, arXiv 2304.11277): layers are gathered for each pass,
        # what is outside of them stays from the first to the second
        context, micro = context_of(case), case.batch.gradient_accumulation_steps
        layers = context.layers if context else 0
        gathered = 2.0 * micro * parameters * BYTES[precision.compute]
        return [
            ExpectedCollective("all_gather", gathered, everywhere, micro * (2 * layers + 1)),
            ExpectedCollective("reduce_scatter", micro * reduced, everywhere, micro * (layers + 1)),
        ]

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        shards = case.world_size if self.sharded else 1
        return zero_table(case, parameters, stored=case.precision.master, shards=(shards, shards, shards))

    def build(self, setting: Setting) -> Engine:
        if self.sharded:
            from distbench.strategies.cp.sharded import build_sharded

            return build_sharded(self, setting)
        from distbench.strategies.cp.engine import build_cp

        return build_cp(self, setting)

    @property
    def _of_data(self) -> str:
        """The dimension of ranks with rows of their own."""
        return "dp_shard" if self.sharded else "dp_replicate"

    def _over(self, ranks: int) -> Mesh:
        return Mesh.of({"cp": self.asked.get("cp", ranks)}, ranks, self._of_data)

    def _cut(self, ranks: int) -> ContextParallelism:
        return ContextParallelism(self._over(ranks).size("cp"), self.implementation)
