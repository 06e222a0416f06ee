"""``cp``: context parallelism, the positions of each row over ranks (DeepSpeed-Ulysses, arXiv:2309.14509)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from distbench.bounds import Count
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies import _mesh
from distbench.strategies._context_parallel import ContextParallelism
from distbench.strategies._model_states import Replicated
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.cp.card import PLAIN
from distbench.strategies.description import (
    PORTIONS,
    SHARDING,
    Card,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)


@dataclass(frozen=True)
class ContextParallel(Replicated):
    """Context parallelism: a whole model on each rank, for some of the positions of every row."""

    engine = "ContextParallelEngine"
    early = ("distbench.strategies.cp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "mesh", "positions_per_rank"),
        **points(PORTIONS, "context_parallel"),
    }

    mesh: dict[Literal["cp"], Count] = field(default_factory=dict)
    """{cp: 2}: pairs of neighbouring ranks share rows, and pairs have rows of their own; left out: all ranks
    share all rows."""

    @property
    def label(self) -> str:
        return f"cp{self.mesh['cp']}+ddp" if self.mesh else "cp"

    @property
    def simplicity(self) -> int:
        # as simple as sharding, but the model has to lend a hand
        return 35 + bool(self.mesh)

    @property
    def card(self) -> Card:
        return PLAIN

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {**self._over(ranks).sizes}

    def data_ranks(self, ranks: int) -> int:
        return self._over(ranks).data_ranks

    def problem(self, case: Case, machine: Machine) -> str | None:
        ranks = case.world_size
        if reason := _mesh.problem(dict(self.mesh.items()), ranks, "dp_replicate"):
            return reason
        if self._over(ranks).size("cp") < 2:
            return "context parallelism needs at least 2 devices for a row; use ddp, or a larger world size"
        if case.precision.reduce != case.precision.master:
            return (
                f"cp reduces gradients in the parameters' dtype: precision.reduce = {case.precision.reduce} "
                f"with precision.master = {case.precision.master}"
            )
        return self._cut(ranks).problem(case) or super().problem(case, machine)

    def expected(self, case: Case) -> dict[str, Any]:
        return self._cut(case.world_size).expected(case)

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return by_operation(self.collectives_by_dimension(case, parameters))

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        ranks = case.world_size
        samples = case.batch.global_batch_size // self.data_ranks(ranks)
        # every rank has gradients of its own positions
        everywhere = " x ".join(name for name, size in self.dimensions(ranks).items() if size > 1)
        reduced = float(parameters * BYTES[case.precision.reduce])
        gradients = ExpectedCollective("all_reduce", reduced, everywhere)
        return [*self._cut(ranks).collectives(case, samples), gradients]

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.cp.engine import build_cp

        return build_cp(self, setting)

    def _over(self, ranks: int) -> _mesh.Mesh:
        return _mesh.Mesh.of({"cp": self.mesh.get("cp", ranks)}, ranks, "dp_replicate")

    def _cut(self, ranks: int) -> ContextParallelism:
        return ContextParallelism(self._over(ranks).size("cp"))
